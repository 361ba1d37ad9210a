"""Layer 5: the language programs are written in."""
