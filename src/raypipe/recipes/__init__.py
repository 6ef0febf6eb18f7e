"""Recipes: reads and checks them, and runs one in a single process without Ray."""
