"""The steps over a graph and public data, one verb per file."""
