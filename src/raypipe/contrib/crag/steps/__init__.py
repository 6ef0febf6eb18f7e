"""Steps over a knowledge graph and public data, one verb per file."""
