"""Metrics: pure functions from predictions and truths to numbers, and readers of prediction files."""
