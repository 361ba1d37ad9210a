"""The HTTP room: an OpenAI-compatible ASGI app over a Transport, and its Ray Serve deployment."""
