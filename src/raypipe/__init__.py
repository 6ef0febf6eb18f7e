"""Answers whole datasets of questions on a Ray cluster, and single questions with the same logic."""
