"""The endpoint on Ray Serve: a gateway that runs the recipe, and deployments of models.

    gateway ──> embed     texts to vectors
        ├─────> rerank    pairs to scores
        └─────> generate  chats to replies, if the recipe has a language model: the engine of the jobs

Each deployment is scaled on its own. The gateway reads the store, splits a request's own pages, searches and
decides; it needs no accelerator. Knows Ray Serve; what is computed is in `serving.answerer`, the HTTP API in
`serving.http`.
"""
