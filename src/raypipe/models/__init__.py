"""Embedders, rerankers, generators and tokenizers: the only package that imports FlagEmbedding or vLLM.

`catalog` turns entries of models.yaml into `protocols.Model` values, and `folder` finds and checks their
files. `load` opens embedders, rerankers and tokenizers: with weights (`encoder_models`), behind a server
(`remote`), or without weights (`fake`). `kit` also opens generators.
Importing `catalog` or `load` imports no heavy library.
"""
