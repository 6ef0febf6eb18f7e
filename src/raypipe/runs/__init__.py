"""Runs of a store: their plan, manifest, explanation, changes, releases and pruning."""
