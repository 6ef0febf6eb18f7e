"""CRAG's knowledge graph and public data: the language of calls, tables, server, and their steps."""
