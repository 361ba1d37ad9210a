"""Layer 1: text to token ids and back, stop strings, chat templates."""
