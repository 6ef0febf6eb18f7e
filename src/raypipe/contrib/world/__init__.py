"""The invented world for demos, tests and load tests: questions, pages, a graph, and stand-in models."""
