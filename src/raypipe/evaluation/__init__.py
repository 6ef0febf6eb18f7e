"""Evaluation: takes a dataset from its files to a scored report."""
