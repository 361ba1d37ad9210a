"""Layer 4: ways to reach a model without Ray."""
