"""Embedders, rerankers, generators, tokenizers: the only place that imports torch, vLLM or FlagEmbedding.

`catalog` turns entries of models.yaml into `protocols.Model` values, `folder` finds and guards their files,
and `load` opens them: `flagembedding` through its own classes, `encoder` through plain transformers, `maxsim`
on top of it, `fake` with no weights. Importing `catalog` or `load` imports no heavy library.
"""
