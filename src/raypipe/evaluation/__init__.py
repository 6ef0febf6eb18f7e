"""A dataset from its files to a scored report."""
