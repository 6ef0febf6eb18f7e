"""Embedders, rerankers, generators and tokenizers: the only package that imports FlagEmbedding or vLLM.

`catalog` turns entries of models.yaml into `protocols.Model` values, `folder` finds and checks their files,
and `load` opens them: with FlagEmbedding's classes (`library_models`), with plain transformers
(`encoder_models`, MaxSim too), or without weights (`fake`). Importing `catalog` or `load` imports no heavy
library.
"""
