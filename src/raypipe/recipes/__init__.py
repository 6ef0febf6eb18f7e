"""Recipes: reading and checking them, and running one in a single process without Ray."""
