"""The calls of each domain of CRAG's knowledge graph, one module a domain."""
