"""Steps of recipes, for the corpus and for questions: one operation, or a few related ones, per file."""
