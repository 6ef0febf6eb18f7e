"""Runs of a store: their plan, record, explanation, changes, releases and pruning."""
