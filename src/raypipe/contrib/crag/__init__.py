"""CRAG's knowledge graph and public data: call language, tables, mock server, and the steps that use them."""
