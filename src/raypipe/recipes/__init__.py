"""Recipes: their reading, their checks, and their execution in one process without Ray."""
