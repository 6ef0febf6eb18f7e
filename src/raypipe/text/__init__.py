"""Functions on text: parsing of pages, chunks, words, BM25, prompts, replies. They call no models."""
