"""Layer 4: Ray actors around the engine and the scheduler."""
