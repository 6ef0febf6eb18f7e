"""The endpoint on Ray Serve: a gateway that runs the recipe, models beside it.

    gateway ──> embed     texts to vectors
        ├─────> rerank    pairs to scores
        └─────> generate  chats to replies, where the recipe asks a language model: the jobs' engine

Each is a deployment, so that each is scaled alone. The gateway reads the store, splits a request's own pages,
searches and decides; it needs no accelerator. Knows Ray Serve; what is computed is in `online`, how it is
asked for over HTTP in `service`.
"""

from raypipe.serving.ray.app import NAME, deployed, run, stop
from raypipe.serving.ray.models import TOGETHER, Models

__all__ = ["NAME", "TOGETHER", "Models", "deployed", "run", "stop"]
