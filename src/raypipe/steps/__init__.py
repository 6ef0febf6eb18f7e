"""A verb per file: the steps of the corpus half and of the question half."""
