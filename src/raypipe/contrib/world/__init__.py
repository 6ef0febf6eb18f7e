"""The invented world of demo, tests and load: questions, pages, graph; and stand-ins for models."""
