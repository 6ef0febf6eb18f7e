"""Knowledge graphs: tables, linking of names, execution of call programs, sentences, the mock API.

Knows records and text. Does not know models, stores or recipes.
"""
