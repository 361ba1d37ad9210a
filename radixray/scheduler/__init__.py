"""Layer 1: what runs where and when. Pure decisions over data."""
