"""Questions about the invented world."""
