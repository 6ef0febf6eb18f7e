"""What captured, shadowed and canaried traffic come to, through HTTP, with models that compute from words.

    python bench/drills/live_traffic.py                # all three, some minutes on two cores
    python bench/drills/live_traffic.py --only shadow --turns 10

- capture: 200 questions through HTTP, then the same as a job; counts the answers that differ by a byte.
- shadow: p99 of open-loop traffic at half of the highest rate, with a shadow and without, by turns.
- canary: a worse release gets 5 % of the questions; how many requests until it is rolled back, and why.

It prints one JSON object for each.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from http_app import OPEN, listening
from reruns import FAKES, Bench

from raypipe.api.captured import captured_span, write_captured
from raypipe.api.release import show_trials, start_canary, start_shadow, stop_trials
from raypipe.core import arrow
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models.kit import LocalKit
from raypipe.runs.manifest import read
from raypipe.runs.release import live, promote
from raypipe.serving.access import CaptureConfig
from raypipe.serving.capture import Capture
from raypipe.serving.http import create_app
from raypipe.serving.release_follower import ReleaseFollowers
from raypipe.serving.serve_kit import InFlight, YieldingKit
from raypipe.serving.trials import SecondAnswers, TrialRouter
from raypipe.store import Store
from raypipe.synth import write

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")
WORSE = FAKES.replace("threshold: 0.5\n", "threshold: 1.0\n").replace("top: 10}", "top: 1}")


def made(folder: Path, questions: int) -> tuple[Store, Any]:
    """A store with two runs over invented questions, the better of which is live."""
    world = folder / "world"
    write(world, questions, pages=3, seed=11, page_chars=1000)
    bench = Bench(folder, world)
    for name, recipe in (("good", SURE), ("bad", WORSE)):
        bench.run(recipe, out=name)
    store = Store.open(str(folder / "store"))
    promote(store, read(folder / "good"), [])
    return store, bench


def app_over(store: Store, capture: Capture | None = None) -> FastAPI:
    """The endpoint, and what makes its second answers."""
    in_flight = InFlight()
    kit = YieldingKit(LocalKit(None, "transformers"), in_flight)
    seconds = SecondAnswers(store, in_flight)
    router = TrialRouter(ReleaseFollowers(kit, store.uri), seconds)
    return create_app(router, OPEN, capture=capture)


async def fire(
    url: str, bodies: list[dict[str, Any]], per_s: float | None = None, at_once: int = 8, seed: int = 0
) -> list[tuple[float, httpx.Response]]:
    """Seconds of each reply: `at_once` in flight, or open-loop at a rate with exponential pauses."""
    found: list[tuple[float, httpx.Response]] = []
    turns, rng = asyncio.Semaphore(at_once if per_s is None else 1000), random.Random(seed)
    async with httpx.AsyncClient(
        base_url=url, timeout=90, limits=httpx.Limits(max_connections=100, keepalive_expiry=2)
    ) as client:

        async def one(body: dict[str, Any], due: float) -> None:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            async with turns:
                start = time.perf_counter() if per_s is None else due
                reply = await client.post("/v1/answer", json=body)
                found.append((time.perf_counter() - start, reply))

        due, tasks = time.perf_counter(), []
        for body in bodies:
            tasks.append(asyncio.ensure_future(one(body, due)))
            due += 0.0 if per_s is None else rng.expovariate(per_s)
        await asyncio.gather(*tasks)
    return found


def capture(folder: Path, questions: int) -> dict[str, Any]:
    """Captures answers to stored, whole-store and own-page questions, and answers them again as a job."""
    store, bench = made(folder, questions)
    lines = bench.lines()
    kinds: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (
        lambda x: {"query": x["query"]},
        lambda x: {"query": f"tell me: {x['query']}"},
        lambda x: {"query": f"{x['query']} ", "documents": x["search_results"]},
    )
    bodies = [kinds[i % 3](line) for i, line in enumerate(lines)]
    captured = Capture(store.uri, CaptureConfig(1.0))
    with listening(app_over(store, captured)) as url:
        replies = [r for _, r in asyncio.run(fire(url, bodies))]
        time.sleep(7)  # rows are written within five seconds
    span = captured_span(["captured:1d"])
    assert span is not None
    equal = total = 0
    for into in (store, Store.create(str(folder / "other"))):
        files = write_captured(span, store, into, folder / "data")
        pipe = bench.pipeline(SURE)
        pipe = type(pipe)(
            into, pipe.recipe, type(pipe.worker)(into.uri, "transformers", "cpu", 1), *_rest(pipe)
        )
        evaluate(pipe, [files.data], folder / f"job-{total}", EvalOptions("captured", fresh=True))
        said = [json.loads(line) for line in files.answers.open()]
        asked = arrow.question.records(into.rows("questions", "id", [line["id"] for line in said]))
        answers = {q.id: q.answer for q in pipe.answers(asked)}
        equal += sum(answers[line["id"]].encode() == line["prediction"].encode() for line in said)
        total += len(said)
    return {
        "captured": len({r.json()["answer_id"] for r in replies}), "evaluated": total, "equal": equal,
        "status": sorted({r.status_code for r in replies}),
    }  # fmt: skip


def _rest(pipe: Any) -> tuple[Any, ...]:
    return pipe.sizes, pipe.runner, pipe.progress


def shadow(folder: Path, questions: int, turns: int, seconds: float, share: float) -> dict[str, Any]:
    """p99 with a shadow and without, by turns, at half of the highest rate."""
    store, bench = made(folder, questions)
    texts = [line["query"] for line in bench.lines()]
    start_shadow(folder / "bad", share, store)
    with listening(app_over(store)) as url:
        bodies = [{"query": q} for q in texts]
        asyncio.run(fire(url, bodies))
        gc.collect()
        gc.freeze()  # as a gateway does
        start = time.perf_counter()
        asyncio.run(fire(url, bodies * 2))
        rate = 2 * len(bodies) / (time.perf_counter() - start) / 2
        times: dict[bool, list[list[float]]] = {True: [], False: []}
        for turn in range(2 * turns):
            on = turn % 2 == (turn // 2) % 2  # on off, off on, ...: a drift counts for both
            if on:
                start_shadow(folder / "bad", share, store)
            elif show_trials(store).running:
                stop_trials(store)
            time.sleep(1.2)
            asyncio.run(fire(url, bodies[:4]))  # so that the pointer is read
            time.sleep(0.5)
            some = [bodies[(turn // 2 * 97 + i) % len(bodies)] for i in range(int(rate * seconds))]
            times[on].append([s for s, _ in asyncio.run(fire(url, some, rate, seed=turn // 2))])
    p50 = {on: float(np.percentile(np.concatenate(t), 50)) * 1000 for on, t in times.items()}
    p99 = {on: float(np.percentile(np.concatenate(t), 99)) * 1000 for on, t in times.items()}
    # Both turns of a pair have the same arrivals: what bursts do to the tail falls on both.
    added = [np.percentile(a, 99) / np.percentile(b, 99) - 1 for a, b in zip(*times.values(), strict=True)]
    rng = np.random.default_rng(0)
    drawn = [np.median(rng.choice(added, len(added))) for _ in range(10_000)]
    report = show_trials(store)
    pairs = sum(r.pairs for r in report.running) + (report.ended.pairs if report.ended else 0)
    return {
        "half_load_per_s": round(rate, 1), "share": share, "turns": turns,
        "requests": sum(map(len, times[True])),
        "p50_ms": {"off": round(p50[False], 1), "on": round(p50[True], 1)},
        "p99_ms": {"off": round(p99[False], 1), "on": round(p99[True], 1)},
        "p99_added": [round(float(x), 3) for x in added], "median": round(float(np.median(added)), 3),
        "interval_95": [round(float(x), 4) for x in np.percentile(drawn, [2.5, 97.5])],
        "pairs_of_the_last_turn": pairs,
    }  # fmt: skip


def canary(folder: Path, questions: int) -> dict[str, Any]:
    """Requests until a worse release with 5 % of the questions is gone, and its report."""
    store, bench = made(folder, questions)
    good = _live(store)
    start_canary(folder / "bad", 0.05, ["not-worse:0.05"])
    texts = [line["query"] for line in bench.lines()]
    sent, by = 0, dict[str, int]()
    with listening(app_over(store)) as url:
        while show_trials(store).running and sent < 20 * len(texts):
            for _, reply in asyncio.run(fire(url, [{"query": q} for q in texts[:50]], at_once=2)):
                release = reply.json()["versions"]["release"]
                by[release] = by.get(release, 0) + 1
            sent += 50
            texts = texts[50:] + texts[:50]
    ended = show_trials(store).ended
    return {
        "requests": sent, "by_release": by, "live_as_before": _live(store) == good,
        "verdict": ended and ended.verdict, "why": ended and ended.why,
    }  # fmt: skip


def _live(store: Store) -> str:
    found = live(store)
    assert found is not None
    return found.id


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    given.add_argument("--only", choices=("capture", "shadow", "canary"))
    given.add_argument("--questions", type=int, default=200)
    given.add_argument("--turns", type=int, default=6, help="with a shadow, and as many without")
    given.add_argument("--seconds", type=float, default=15, help="of a turn")
    given.add_argument("--share", type=float, default=0.05)
    args = given.parse_args()
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "capture": lambda f: capture(f, args.questions),
        "shadow": lambda f: shadow(f, args.questions, args.turns, args.seconds, args.share),
        "canary": lambda f: canary(f, max(args.questions, 400)),
    }
    for name, run in parts.items():
        if args.only in (None, name):
            folder = Path(tempfile.mkdtemp(prefix="live-traffic-"))
            try:
                print(json.dumps({name: run(folder)}), flush=True)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
