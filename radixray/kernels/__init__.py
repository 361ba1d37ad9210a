"""Kernels: the KV pool, and attention over it behind one protocol (`kernels.attention`)."""
