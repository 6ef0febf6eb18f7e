"""The invented world."""
