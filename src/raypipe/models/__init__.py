"""Embedders, rerankers, generators and tokenizers: the only package that imports FlagEmbedding or vLLM.

`catalog` turns entries of models.yaml into `protocols.Model` values, and `folder` finds and checks their
files. `load` opens embedders, rerankers and tokenizers: with a library's classes (`library_models`), plain
transformers (`encoder_models`), a server (`remote`), or no weights (`fake`). `kit` also opens generators.
Importing `catalog` or `load` imports no heavy library.
"""
