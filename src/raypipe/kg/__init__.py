"""Asking a knowledge graph: tables, linking names, running programs of calls, words for rows, the mock API.

Knows records and text. Does not know models, stores or recipes.
"""
