"""The Serve application: its deployments and their resources; starting and stopping it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve import Application
from ray.serve._private import client
from ray.serve.config import BackpressureConfig, HTTPOptions
from ray.serve.schema import LoggingConfig

from raypipe.core.errors import Unavailable
from raypipe.models.kit import LocalKit
from raypipe.recipes.recipe import Recipe
from raypipe.serving.access import ServerConfig
from raypipe.serving.http.errors import RETRY_AFTER_S
from raypipe.serving.ray.gateway import Gateway
from raypipe.serving.ray.models import ModelDeployment

APP_NAME, GATEWAY = "raypipe", "gateway"
GATEWAY_CPUS, MODEL_CPUS = 0.2, 0.4
"""CPUs that Ray reserves per replica unless a Serve config says otherwise: one CPU together, so that the
endpoint starts on any machine. A model computes with the threads of its kit."""

MAX_CONNECTIONS = 1000
"""Open requests per gateway, with slow bodies and health checks. `RequestLimits.max_ongoing_requests` limits
how many are answered at once: a slow client takes a connection, no slot."""

MAX_CALLS, MAX_QUEUED_CALLS = 100, 400
"""Calls at once in one replica of models, and calls that a gateway queues for the deployment. Beyond that the
gateway answers 429; `max_ongoing_requests` requests of a few calls each stay below it."""

SHUTDOWN_GRACE_S = 30.0
"""For requests in flight when a replica is told to stop: the default deadline."""

SHUTDOWN_LOOK_S = 0.1
"""Between two looks of a replica that is told to stop at its requests in flight. It waits this long at
least; Serve's own are 2 s."""

LOOK_S = 0.1
"""Between two looks at whether the application runs, or is gone: Serve's own are 1 s, and no option."""

HEALTH_CHECK_S = 5.0
"""Between two health checks of a replica: a dead engine is replaced after this long, not Serve's ten."""


def build_application(
    recipe: Recipe,
    store: str,
    kit: Callable[[], LocalKit],
    gpus: float,
    config: ServerConfig | None = None,
    follow_live: bool = False,
    engine_gpus: float = 0,
    gateways: int = 1,
) -> Application:
    """The application.

    `store` is its URI; `kit` makes the kit of each replica of models; `gpus` are the GPUs of each replica of
    embedders or rerankers, `engine_gpus` those of a replica of engines. `follow_live`: the live release
    answers, whose recipe is now `recipe`. A Serve config overrides replicas and resources.
    """
    config = config or ServerConfig()

    def deploy_models(name: str, kind: str) -> Application:
        chosen = [m for m in recipe.models() if m.kind == kind]
        resources = {"num_cpus": MODEL_CPUS, "num_gpus": engine_gpus if kind == "generator" else gpus}
        deployment = serve.deployment(
            ModelDeployment,
            name=name,
            max_ongoing_requests=MAX_CALLS,
            max_queued_requests=MAX_QUEUED_CALLS,
            ray_actor_options=resources,
            graceful_shutdown_timeout_s=SHUTDOWN_GRACE_S,
            graceful_shutdown_wait_loop_s=SHUTDOWN_LOOK_S,
            health_check_period_s=HEALTH_CHECK_S,
        )
        return deployment.bind(kit, chosen)

    gateway = serve.deployment(
        serve.ingress()(Gateway),
        name=GATEWAY,
        num_replicas=gateways,
        max_ongoing_requests=MAX_CONNECTIONS,
        max_queued_requests=MAX_CONNECTIONS,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=RETRY_AFTER_S),
        ray_actor_options={"num_cpus": GATEWAY_CPUS},
        graceful_shutdown_timeout_s=SHUTDOWN_GRACE_S,
        graceful_shutdown_wait_loop_s=SHUTDOWN_LOOK_S,
        health_check_period_s=HEALTH_CHECK_S,
    )
    generates = any(m.kind == "generator" for m in recipe.models())
    return gateway.bind(
        None if follow_live else recipe,
        store,
        config,
        deploy_models("embed", "embedder"),
        deploy_models("rerank", "reranker"),
        deploy_models("generate", "generator") if generates else None,
    )


def start(app: Application, host: str, port: int) -> None:
    """Starts Serve and the application in the connected Ray; returns when its replicas are ready. Raises
    Unavailable where Serve does not start."""
    quiet = LoggingConfig(log_level=logging.WARNING, enable_access_log=False)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # of this process
    client.CLIENT_POLLING_INTERVAL_S = LOOK_S
    try:
        serve.start(http_options=HTTPOptions(host=host, port=port), logging_config=quiet)
    except (RayActorError, TimeoutError) as e:
        raise Unavailable(
            f"Ray Serve's proxy did not start within a minute ({type(e).__name__}): is this machine busy? "
            "Start it again"
        ) from e
    serve.run(app, name=APP_NAME, route_prefix="/", logging_config=quiet)


def reopen() -> None:
    """Lets every gateway search the tables of its recipe as they are now. Raises Unavailable."""
    try:
        serve.get_deployment_handle(GATEWAY, APP_NAME).broadcast("reopen").results()
    except (RayError, RuntimeError) as e:
        raise Unavailable(f"a gateway could not open the tables as they are now: {e}") from e


def stop() -> None:
    """Stops the application after the requests in flight. Serve ends with the Ray that it runs in."""
    serve.delete(APP_NAME)
