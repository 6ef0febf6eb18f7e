"""The endpoint on Ray Serve: a gateway that runs the recipe, and deployments of models.

    gateway ──> embed     texts to vectors
        ├─────> rerank    pairs to scores
        └─────> generate  chats to replies, if the recipe has a language model: the same engine as in jobs

Each deployment is scaled separately. The gateway reads the store, parses and splits a request's own pages,
searches and decides; it needs no accelerator. This package depends on Ray Serve; `serving.answerer` computes
the answers, and `serving.http` is the HTTP API.
"""
