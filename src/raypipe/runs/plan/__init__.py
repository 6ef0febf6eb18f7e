"""Plans: the calls that a run may make, their reasons and their time, computed before it starts."""
