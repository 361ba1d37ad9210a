"""Talking to a server from a terminal."""
