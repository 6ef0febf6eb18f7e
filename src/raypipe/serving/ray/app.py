"""The Serve application: its deployments and their resources, its start and its stop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve import Application
from ray.serve._private import client
from ray.serve.config import BackpressureConfig, HTTPOptions
from ray.serve.exceptions import RayServeException
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
"""CPUs that Ray reserves per replica; a Serve config may set others. Gateway, embedders and rerankers
together take one CPU, so that they start on any machine. A model computes with the threads of its kit."""

MAX_CONNECTIONS = 1000
"""Most open requests per gateway, including slow bodies and health checks.
`RequestLimits.max_ongoing_requests` limits the requests that are answered at the same time: a slow client
takes a connection, but no slot."""

MAX_CALLS, MAX_QUEUED_CALLS = 100, 400
"""Most concurrent calls in one replica of models, and most that a gateway queues for the deployment. A
further call gets 429. `max_ongoing_requests` requests of a few calls each need fewer."""

SHUTDOWN_GRACE_S = 30.0
"""Most seconds that a stopping replica waits for its requests in flight: the default deadline."""

SHUTDOWN_LOOK_S = 0.1
"""Seconds between two checks of a stopping replica for requests in flight; it waits at least this long.
Serve's default is 2 s."""

LOOK_S = 0.1
"""Seconds between two checks whether the application runs or is removed. Serve's default is 1 s, and it has
no public option for it."""

HEALTH_CHECK_S = 5.0
"""Seconds between two health checks of a replica, which replace a dead engine. Serve's default: 10."""


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
    """Builds the Serve application over the store at the URI `store`.

    If `follow_live` is true, the store's live release answers, and `recipe` is only its recipe at the start.
    `kit` makes the kit (access to models) of each replica of models. A replica of embedders or rerankers gets
    `gpus` GPUs, and a replica of language models `engine_gpus`. `gateways` is the number of gateway replicas.
    A Serve config overrides replicas and resources."""
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
    """Starts Serve and the application in the connected Ray cluster; returns when the replicas are ready.
    Raises Unavailable if Serve's proxy does not start, and Serve's error if the application cannot start."""
    quiet = LoggingConfig(log_level=logging.WARNING, enable_access_log=False)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # in this process
    client.CLIENT_POLLING_INTERVAL_S = LOOK_S
    try:
        serve.start(http_options=HTTPOptions(host=host, port=port), logging_config=quiet)
    except (RayActorError, TimeoutError) as e:
        why = f"within a minute ({type(e).__name__}): is this machine busy? Start it again"
        raise Unavailable(f"Ray Serve's proxy did not start {why}") from e
    serve.run(app, name=APP_NAME, route_prefix="/", logging_config=quiet)


def reopen() -> None:
    """Makes every gateway open the newest tables of its recipe. A gateway that follows the live release does
    nothing. Raises Unavailable if the application does not run, or if a gateway cannot open the tables."""
    try:
        serve.get_deployment_handle(GATEWAY, APP_NAME).broadcast("reopen").results()
    except (RayError, RuntimeError) as e:
        raise Unavailable(f"a gateway could not open the tables as they are now: {e}") from e


def stop() -> None:
    """Stops the application after the requests in flight. Serve itself ends with its Ray cluster.

    Serve answers 404 from the start of `delete`, so the gateways first refuse new requests with 503."""
    # No gateway runs, or some requests do not end in time.
    with suppress(RayError, RayServeException, RuntimeError, TimeoutError):
        handle = serve.get_deployment_handle(GATEWAY, APP_NAME)
        handle.broadcast("drain").results(timeout_s=SHUTDOWN_GRACE_S)
    serve.delete(APP_NAME)
