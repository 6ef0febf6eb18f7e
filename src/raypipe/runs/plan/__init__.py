"""Plans: what a run may compute, why, and how long it may take, before it starts."""
