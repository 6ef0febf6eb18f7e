"""The application: which deployments there are and what each holds; how it is started and ended."""

from __future__ import annotations

import logging

from ray import serve
from ray.serve import Application
from ray.serve.config import BackpressureConfig, HTTPOptions
from ray.serve.schema import LoggingConfig

from raypipe.pipeline.tasks import WorkerConfig
from raypipe.recipes.deadlines import DegradePolicy
from raypipe.recipes.recipe import Recipe
from raypipe.serving.access import ServerConfig
from raypipe.serving.http.errors import RETRY_S
from raypipe.serving.ray.gateway import Gateway
from raypipe.serving.ray.models import ModelDeployment

NAME = "raypipe"
GATEWAY_CPUS, MODEL_CPUS = 0.2, 0.4
"""What Ray sets aside per replica unless a Serve config says otherwise: one CPU together, so that the
endpoint starts on any machine. How many threads a model computes with is `WorkerConfig.threads`."""

CONNECTIONS = 1000
"""Requests that one gateway holds open, slow bodies and health checks among them. How many are answered at
once is `RequestLimits.ongoing`: a client that dawdles costs a connection, no slot."""

CALLS, WAITING = 100, 400
"""Of a deployment of models: calls in one replica at once, and those that a gateway lets wait for one. Beyond
it a gateway says 429; `RequestLimits.ongoing` requests of a few calls each stay below it."""

LAST_S = 30.0
"""For requests in flight when a replica is told to end: the default deadline."""

HEALTH_S = 5.0
"""Between two looks at a replica: a dead engine is replaced after this long, not Serve's ten."""


def deployed(
    recipe: Recipe,
    place: WorkerConfig,
    gpus: float,
    face: ServerConfig | None = None,
    rules: DegradePolicy | None = None,
    follows: bool = False,
    engine_gpus: float = 0,
    gateways: int = 1,
) -> Application:
    """The application. `follows`: the live release answers, which is `recipe` now. `place` says where the
    store is and what models compute on, `gpus` what each replica with embedders or rerankers holds of them,
    `engine_gpus` one with engines, and `gateways` how many of those there are, unless a Serve config says
    otherwise."""
    face, rules = face or ServerConfig(), rules or DegradePolicy()
    wanted = dict.fromkeys((*recipe.models(), *rules.models()))

    def models(name: str, kind: str) -> Application:
        chosen = [m for m in wanted if m.kind == kind]
        holds = {"num_cpus": MODEL_CPUS, "num_gpus": engine_gpus if kind == "generator" else gpus}
        made = serve.deployment(
            ModelDeployment,
            name=name,
            max_ongoing_requests=CALLS,
            max_queued_requests=WAITING,
            ray_actor_options=holds,
            graceful_shutdown_timeout_s=LAST_S,
            health_check_period_s=HEALTH_S,
        )
        return made.bind(place, chosen)

    gateway = serve.deployment(
        serve.ingress()(Gateway),
        name="gateway",
        num_replicas=gateways,
        max_ongoing_requests=CONNECTIONS,
        max_queued_requests=CONNECTIONS,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=RETRY_S),
        ray_actor_options={"num_cpus": GATEWAY_CPUS},
        graceful_shutdown_timeout_s=LAST_S,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=HEALTH_S,
    )
    asks = any(m.kind == "generator" for m in wanted)
    return gateway.bind(
        None if follows else recipe,
        place.store,
        face,
        rules,
        models("embed", "embedder"),
        models("rerank", "reranker"),
        models("generate", "generator") if asks else None,
    )


def run(app: Application, host: str, port: int) -> None:
    """Starts Serve in the joined Ray and the application on it; returns when its replicas are ready."""
    quiet = LoggingConfig(log_level=logging.WARNING, enable_access_log=False)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # of this process
    serve.start(http_options=HTTPOptions(host=host, port=port), logging_config=quiet)
    serve.run(app, name=NAME, route_prefix="/", logging_config=quiet)


def stop() -> None:
    """Ends the application: requests in flight are finished first. Serve ends with the Ray it runs in."""
    serve.delete(NAME)
