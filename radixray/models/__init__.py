"""Models: finding them, loading their weights, and running one step of a batch."""
