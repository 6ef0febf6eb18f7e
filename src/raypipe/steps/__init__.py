"""Steps of recipes, for the corpus and for questions. A file has one step, or a few related ones."""
