"""What the endpoint costs and what it gains: the same questions to `run.answer` in a bare loop, one after the
other in one process, and over HTTP to Ray Serve with 1, 8 and 32 clients, with and without computing the
calls of several requests together. One machine, one run, an invented data set.

`overhead` is what a request takes beyond answering: client, proxy, gateway, reading and writing JSON, at one
client. Prints one JSON object per way.

    python bench/serve.py [--recipe local] [--models FILE] [--questions 32] [--clients 1,8,32]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import ray
from ray import serve

from raypipe import arrow, deploy, synth
from raypipe.access import Face, Keys, Limits
from raypipe.cli.opened import resolved
from raypipe.conf import Conf
from raypipe.index import LanceIndex
from raypipe.ingest import ingest
from raypipe.kit import LocalKit
from raypipe.pipeline import Pipeline, Sizes, inline, searched
from raypipe.recipe import Recipe
from raypipe.records import Question
from raypipe.report.progress import Progress
from raypipe.run import Questions
from raypipe.store import Store
from raypipe.work import Place

ROOT = Path(__file__).parents[1]


def main() -> None:
    args = _arguments()
    recipe = resolved(args.recipe, args.models, Conf((ROOT / "conf",)))
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
    # Before a table is opened: Lance is not to be forked.
    ray.init(address="local", num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            questions, store = filled(Path(folder), recipe, args.questions, args.pages)
            _say({"way": "bare loop", **asyncio.run(_bare(recipe, store, questions))})
            for together in (deploy.TOGETHER, 1):
                _serve(recipe, store, together, questions, args)
    finally:
        serve.shutdown()
        ray.shutdown()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipe", default="local")
    parser.add_argument("--models")
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--pages", type=int, default=5, help="of each question")
    parser.add_argument("--clients", default="1,8,32")
    return parser.parse_args()


def filled(folder: Path, recipe: Recipe, count: int, pages: int) -> tuple[list[Question], Store]:
    """A store with an invented data set, indexed."""
    synth.write(folder / "world", count, pages=pages, seed=7, page_chars=3000)
    store = Store.create(str(folder / "store"))
    with Progress(io.StringIO(), silent=True) as progress:
        ingest(store, [folder / "world"], "synth", progress)
        place = Place(store.uri, "sorted", "cpu", 2)
        pipeline = Pipeline(store, recipe, place, Sizes(200, 50), inline, progress)
        questions = arrow.question.records(store.dataset("questions").to_table())
        pipeline.index(questions)
    return questions, store


async def _bare(recipe: Recipe, store: Store, questions: list[Question]) -> dict[str, Any]:
    ask = Questions(recipe, LocalKit(LanceIndex(searched(store, recipe)), "sorted", threads=1))
    await ask(questions[:2])  # models are loaded
    took, start = [], time.perf_counter()
    for question in questions:
        began = time.perf_counter()
        await ask([question])
        took.append(time.perf_counter() - began)
    return _numbers(took, time.perf_counter() - start)


def _serve(
    recipe: Recipe, store: Store, together: int, questions: list[Question], args: argparse.Namespace
) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    face = Face(Keys(open=True), Limits(ongoing=64, deadline_s=120))
    place = Place(store.uri, "sorted", "cpu", 1)
    deploy.run(deploy.deployed(recipe, place, 0, face, together=together), "127.0.0.1", port)
    url = f"http://127.0.0.1:{port}"
    asyncio.run(_fired(url, questions[:8], 2))  # tables are opened
    for clients in map(int, args.clients.split(",")):
        start = time.perf_counter()
        replies = asyncio.run(_fired(url, questions, clients))
        seconds = time.perf_counter() - start
        told = {"way": "endpoint", "together": together, "clients": clients}
        numbers = _numbers([took for took, _ in replies], seconds)
        if clients == 1:
            beyond = [took * 1000 - said["timings_ms"]["total"] for took, said in replies]
            numbers["overhead_ms"] = {"p50": _at(beyond, 0.5), "p99": _at(beyond, 0.99)}
        _say({**told, **numbers})
    serve.shutdown()


async def _fired(url: str, questions: list[Question], clients: int) -> list[tuple[float, dict[str, Any]]]:
    """Seconds and reply of each question, `clients` at a time. A question without an answer ends the run."""
    turns = asyncio.Semaphore(clients)
    async with httpx.AsyncClient(
        base_url=url, timeout=150, limits=httpx.Limits(max_connections=clients)
    ) as http:

        async def one(question: Question) -> tuple[float, dict[str, Any]]:
            async with turns:
                began = time.perf_counter()
                reply = await http.post("/v1/answer", json={"query": question.id, "deadline_s": 120})
                took = time.perf_counter() - began
                said = reply.raise_for_status().json()
                if said["degraded"]:
                    raise AssertionError(f"left out: {said['degraded']}")
                return took, said

        return await asyncio.gather(*(one(q) for q in questions))


def _numbers(took: list[float], seconds: float) -> dict[str, Any]:
    ms = [t * 1000 for t in took]
    return {"per_second": round(len(took) / seconds, 2), "p50_ms": _at(ms, 0.5), "p99_ms": _at(ms, 0.99)}


def _at(values: list[float], share: float) -> float:
    return round(statistics.quantiles(values, n=100, method="inclusive")[int(share * 100) - 1], 1)


def _say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    main()
