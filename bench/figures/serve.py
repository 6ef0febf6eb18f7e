"""Throughput and latency of the endpoint against a bare loop over the same questions.

The bare loop runs the recipe on one question after the other in one process; the endpoint gets the same
questions over HTTP from 1, 8 and 32 clients, each of which sends the next question when it has an answer.
With several clients, micro-batching of model calls is on (A) and off (B) by turns, A B A B, in the same
replicas: what differs is that, and not the hour. One machine, one run, an invented dataset.

A turn has its share of `--seconds`, the longer the more clients it has, and counts what was answered in it:
`answers`, of these `left_out` with a stage missing, and `unfinished` at its end. `overhead` is what a request
takes beyond answering, at one client: client, proxy, gateway, reading and writing JSON; for the app in this
process the last alone. The endpoint's turns with one client alternate with turns of a Serve application that
does nothing: it reads the same body and sends a reply of the same length. What the endpoint takes beyond that
one is its own (`own_overhead_ms`), the rest is the client's and Ray Serve's. Prints one JSON object per turn,
and per number of clients the ratio of A to B.

    python bench/figures/serve.py [--recipe local] [--models FILE] [--questions 32] [--clients 1,8,32]
        [--seconds 280]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import json
import logging
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import ray
from fastapi import FastAPI, Request, Response
from ray import serve

from raypipe.api.session import load_recipe
from raypipe.contrib.world import write as synth
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.records import Question
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import QuestionExecutor
from raypipe.recipes.recipe import Recipe
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.recipe_tables import searched
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.serving.access import ApiKeys, RequestLimits, ServerConfig
from raypipe.serving.answerer import Answerer
from raypipe.serving.http import create_app
from raypipe.serving.ray import app as serving
from raypipe.serving.ray.models import MICRO_BATCH
from raypipe.store import Store
from raypipe.store.index import LanceIndex

ROOT = Path(__file__).parents[2]


TURNS = (True, False, True, False)
"""Whether calls are computed together; with one client, whether the endpoint is asked or the empty one."""

EMPTY = "empty"

LAST_S = 20.0
"""Of the whole run, for ending Serve and Ray."""


def main() -> None:
    args = _arguments()
    end = time.perf_counter() + args.seconds - LAST_S
    recipe = load_recipe(args.recipe, args.models, Conf((ROOT / "conf",)))
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
    os.environ.setdefault("RAY_worker_niceness", "0")  # as `raypipe serve` does
    # Before a table is opened: Lance is not to be forked.
    ray.init(address="local", num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            questions, store = filled(Path(folder), recipe, args.questions, args.pages)
            served = {"base_url": _served(recipe, store)}
            asyncio.run(_turn(served, questions, 2, WARM_S))  # models are loaded, tables opened
            _measure(recipe, store, served, questions, args.clients, end)
    finally:
        serve.shutdown()
        ray.shutdown()


def _measure(
    recipe: Recipe,
    store: Store,
    served: Mapping[str, Any],
    questions: list[Question],
    clients: list[int],
    end: float,
) -> None:
    left = end - time.perf_counter()
    if left < LEAST_S:
        raise SystemExit(f"--seconds: preparing left {left:.0f} s, expected {LEAST_S:.0f}: give more")
    unit = left / (2 * ALONE + len(TURNS) * sum(max(n, ALONE) for n in clients))
    bare = asyncio.run(_bare(recipe, store, questions, ALONE * unit))
    _say({"way": "bare loop", **bare})
    here = asyncio.run(_turn(_in_process(recipe, store), questions, 1, ALONE * unit))
    _say({"way": "the app in this process", **here})
    for n in clients:
        if n == 1:
            _against_empty(served, questions, ALONE * unit)
            continue
        found: dict[bool, list[float]] = {True: [], False: []}
        for together in TURNS:
            _set_micro_batch(MICRO_BATCH if together else 1)
            numbers = asyncio.run(_turn(served, questions, n, max(n, ALONE) * unit))
            found[together].append(numbers["per_second"])
            _say({"way": "endpoint", "clients": n, "together": together, **numbers})
        if all(found.values()):
            a, b = (statistics.mean(found[together]) for together in (True, False))
            _say({"clients": n, "together to alone": round(a / b, 2) if b else None})


def _against_empty(served: Mapping[str, Any], questions: list[Question], seconds: float) -> None:
    """One client asks the endpoint and the application that does nothing, by turns."""
    reply = httpx.post(f"{served['base_url']}/v1/answer", json={"query": questions[0].id}, timeout=DEADLINE_S)
    said = reply.raise_for_status().json()
    said["timings_ms"]["total"] = 0
    serve.run(_empty(json.dumps(said)), name=EMPTY, route_prefix=f"/{EMPTY}")
    beyond: dict[bool, list[float]] = {True: [], False: []}
    for asked in TURNS:
        where = served if asked else {"base_url": f"{served['base_url']}/{EMPTY}"}
        numbers = asyncio.run(_turn(where, questions, 1, seconds))
        beyond[asked].append(numbers["overhead_ms"]["p50"])
        _say({"way": "endpoint" if asked else "an application that does nothing", "clients": 1, **numbers})
    serve.delete(EMPTY)
    if None in beyond[True] + beyond[False]:
        raise SystemExit("--seconds: a turn of one client had fewer than two answers: give more")
    endpoint, empty = (statistics.mean(beyond[asked]) for asked in (True, False))
    _say({"clients": 1, "own_overhead_ms": round(endpoint - empty, 1)})


def _empty(reply: str) -> serve.Application:
    """An application that reads a body as JSON and sends this reply."""
    app = FastAPI()

    @app.post("/v1/answer")
    async def answer(request: Request) -> Response:
        await request.json()
        return Response(reply, media_type="application/json")

    return serve.deployment(serve.ingress(app)(_Empty)).options(ray_actor_options={"num_cpus": 0}).bind()


class _Empty:
    """Nothing of its own."""


ALONE = 4
"""A turn of one client, and the bare loop, get the time of four clients: enough for a median."""

WARM_S = 10.0
LEAST_S = 30.0
"""For all turns: with less, a turn of one client would not have a second."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipe", default="local")
    parser.add_argument("--models")
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--pages", type=int, default=5, help="of each question")
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=280, help="of the whole run, preparing it included")
    return parser.parse_args()


def filled(folder: Path, recipe: Recipe, count: int, pages: int) -> tuple[list[Question], Store]:
    """A store with an invented dataset, indexed."""
    synth.write(folder / "world", count, pages=pages, seed=7, page_chars=3000)
    store = Store.create(str(folder / "store"))
    with Progress(io.StringIO(), silent=True) as progress:
        ingest(store, [folder / "world"], "synth", progress)
        place = WorkerConfig(store.uri, "transformers", "cpu", 2)
        pipeline = Pipeline(store, recipe, place, TaskSizes(200, 50), inline, progress)
        questions = arrow.question.records(store.dataset("questions").to_table())
        pipeline.index(questions)
    return questions, store


async def _bare(recipe: Recipe, store: Store, questions: list[Question], seconds: float) -> dict[str, Any]:
    ask = QuestionExecutor(recipe, LocalKit(LanceIndex(searched(store, recipe)), "transformers", threads=1))
    await ask(questions[:2])  # models are loaded
    took, start = list[float](), time.perf_counter()
    for question in itertools.cycle(questions):
        began = time.perf_counter()
        await ask([question])
        took.append(time.perf_counter() - began)
        if time.perf_counter() - start > seconds:
            return _numbers(took, time.perf_counter() - start)
    raise AssertionError("a cycle has no end")


def _served(recipe: Recipe, store: Store) -> str:
    """The address of the endpoint, which is ready."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    config = ServerConfig(ApiKeys(open=True), RequestLimits(max_ongoing_requests=64, deadline_s=DEADLINE_S))
    serving.start(
        serving.build_application(
            recipe, store.uri, partial(LocalKit, None, "transformers", "cpu", 1), 0, config
        ),
        "127.0.0.1",
        port,
    )
    return f"http://127.0.0.1:{port}"


def _in_process(recipe: Recipe, store: Store) -> dict[str, Any]:
    """The app with its models in this process: no socket, no Serve."""
    online = Answerer(recipe, LocalKit(None, "transformers", threads=1), store.uri)
    app = create_app(online, ServerConfig(ApiKeys(open=True), RequestLimits(deadline_s=DEADLINE_S)))
    return {"transport": httpx.ASGITransport(app=app), "base_url": "http://here"}


DEADLINE_S = 120.0
"""Of a question: none is cut because many wait."""


def _set_micro_batch(calls: int) -> None:
    """Sets the micro-batch of the model deployments: at most `calls` computed as one from now on."""
    for name in ("embed", "rerank"):
        handle = serve.get_deployment_handle(name, serving.APP_NAME)
        handle.set_micro_batch.remote(calls).result(timeout_s=DEADLINE_S)


async def _turn(
    where: Mapping[str, Any], questions: list[Question], clients: int, seconds: float
) -> dict[str, Any]:
    """Answers and latencies of `clients` clients in `seconds` seconds. `where`: arguments of the client."""
    took, beyond, left_out, sent = list[float](), list[float](), 0, 0
    order = itertools.cycle(questions)
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(**where, timeout=DEADLINE_S + 30, limits=limits) as http:

        async def client() -> None:
            nonlocal left_out, sent
            for question in order:
                began, sent = time.perf_counter(), sent + 1
                reply = await http.post("/v1/answer", json={"query": question.id})
                took.append(time.perf_counter() - began)
                said = reply.raise_for_status().json()
                left_out += bool(said["degraded"])
                beyond.append(took[-1] * 1000 - said["timings_ms"]["total"])

        async with asyncio.TaskGroup() as group:  # a question without an answer ends the run
            asking = [group.create_task(client()) for _ in range(clients)]
            await asyncio.sleep(seconds)
            for task in asking:
                task.cancel()  # which ends the work, too
    numbers = {**_numbers(took, seconds), "left_out": left_out, "unfinished": sent - len(took)}
    if clients == 1:
        numbers["overhead_ms"] = {"p50": _at(beyond, 0.5), "p99": _at(beyond, 0.99)}
    return numbers


def _numbers(took: list[float], seconds: float) -> dict[str, Any]:
    ms, per_second = [t * 1000 for t in took], round(len(took) / seconds, 2)
    return {"answers": len(took), "per_second": per_second, "p50_ms": _at(ms, 0.5), "p99_ms": _at(ms, 0.99)}


def _at(values: list[float], share: float) -> float | None:
    if len(values) < 2:
        return None
    return round(statistics.quantiles(values, n=100, method="inclusive")[int(share * 100) - 1], 1)


def _say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    main()
