"""Calls of CRAG's knowledge graph, one module for each domain."""
