"""Knowledge graph: tables, entity linking, execution of call programs, verbalization, the CRAG mock API.

Knows records and text. Does not know models, stores or recipes.
"""
