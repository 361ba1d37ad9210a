"""Layer 1: which KV pages hold which prefix. No torch here."""
