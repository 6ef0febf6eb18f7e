"""The endpoint on Ray Serve: a gateway that runs the recipe, models beside it.

    gateway ──> embed     texts to vectors
        ├─────> rerank    pairs to scores
        └─────> generate  chats to replies, where the recipe asks a language model: the jobs' engine

Each is a deployment, so that each is scaled alone. The gateway reads the store, splits a request's own pages,
searches and decides; it needs no accelerator. Knows Ray Serve; what is computed is in `serving.answerer`, how
it is requested over HTTP in `serving.http`.
"""

from raypipe.serving.ray.app import NAME, deployed, run, stop
from raypipe.serving.ray.models import MICRO_BATCH, ModelDeployment

__all__ = ["MICRO_BATCH", "NAME", "ModelDeployment", "deployed", "run", "stop"]
