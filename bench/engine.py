"""How fast the shared engine is against vLLM's own `LLM.chat`, and whether both say the same, token by token.

Each way runs in a process of its own, in turn, several times: `peer` (one `LLM.chat` over all chats),
`engine` (the same chats as four concurrent callers of one Engine) and `actor` (the same through a named Ray
actor). Only the time between the first chat sent and the last reply counts. Prints one JSON object.

    python bench/engine.py [--ways peer,engine,actor] [--rounds 2] [--chats 200] [--tokens 500]
                           [--contexts 50]

`--contexts` fewer than chats: chats share them, each caller asking once about every context, as the steps of
a recipe do; `cached` is the share of prompt tokens that came from the prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from raypipe.chat import Chat, Message, Sampling
from raypipe.models import standins
from raypipe.models.engine import Engine
from raypipe.models.generator import Setup
from raypipe.models.vllm_terms import arguments

BLOCK = 50  # chats that one caller sends
WORDS = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "island",
    "juniper",
    "kestrel",
]


def sentence(rng: random.Random) -> str:
    some = rng.choice
    return f"The {some(WORDS)} of {some(WORDS).title()} counted {rng.randrange(999)} {some(WORDS)}s."


@dataclass(frozen=True, slots=True)
class Run:
    """What one way took and said."""

    seconds: float  # wall
    cpu: float  # seconds, of all its processes
    said: list[Any]  # token ids of each reply; of the actor their text, since replies cross processes as text
    cached: float  # share of prompt tokens that were not computed again


def chats(count: int, contexts: int) -> list[Chat]:
    """Chat i asks its own question about context i modulo `contexts`."""
    rng = random.Random(1)
    pages = [" ".join(sentence(rng) for _ in range(rng.randrange(5, 40))) for _ in range(contexts)]
    users = [f"{pages[i % contexts]}\nWho counted {i}?" for i in range(count)]
    return [(Message("system", "Answer in one line."), Message("user", user)) for user in users]


def run_of(spent: tuple[float, float], outputs: list[Any]) -> Run:
    """From vLLM's outputs."""
    said = [list(o.outputs[0].token_ids) for o in outputs]
    prompt = sum(len(o.prompt_token_ids) for o in outputs)
    return Run(*spent, said, sum(o.num_cached_tokens or 0 for o in outputs) / prompt)


class Spent:
    """CPU seconds of this process and its children, over a stretch: on a busy machine the fairer measure."""

    def __init__(self) -> None:
        self._family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        self._wall, self._cpu = time.perf_counter(), self._total()

    def _total(self) -> float:
        return sum(t.user + t.system for t in (p.cpu_times() for p in self._family))

    def so_far(self) -> tuple[float, float]:
        """Wall seconds, CPU seconds."""
        return time.perf_counter() - self._wall, self._total() - self._cpu


def peer(setup: Setup, asked: list[Chat], tokens: int) -> Run:
    from vllm import LLM, SamplingParams

    plain = arguments(setup)
    for name in ("enable_chunked_prefill", "max_num_batched_tokens"):  # as vLLM comes
        plain.pop(name, None)
    llm = LLM(**plain)
    messages: list[Any] = [[{"role": m.role, "content": m.content} for m in chat] for chat in asked]
    params = SamplingParams(temperature=0, max_tokens=tokens)
    llm.chat(messages[:4], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
    spent = Spent()
    outputs = llm.chat(messages, params, use_tqdm=False)
    return run_of(spent.so_far(), outputs)


def engine(setup: Setup, asked: list[Chat], tokens: int) -> Run:
    async def run() -> Run:
        one = Engine(setup)
        try:
            await one.ready()
            await one.outputs(asked[:4], Sampling(max_tokens=4))
            sampling = Sampling(max_tokens=tokens)
            spent = Spent()
            parts = await asyncio.gather(
                *(one.outputs(asked[i : i + BLOCK], sampling) for i in range(0, len(asked), BLOCK))
            )
            return run_of(spent.so_far(), [o for part in parts for o in part])
        finally:
            one.close()

    return asyncio.run(run())


def actor(setup: Setup, asked: list[Chat], tokens: int) -> Run:
    import ray

    from raypipe import engines

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    client = engines.start("engine-bench-0", functools.partial(Engine, setup, True), engines.Place(cpus=0.5))

    async def run() -> Run:
        await client.generate(asked[:4], Sampling(max_tokens=4))
        sampling = Sampling(max_tokens=tokens)
        spent = Spent()
        parts = await asyncio.gather(
            *(client.generate(asked[i : i + BLOCK], sampling) for i in range(0, len(asked), BLOCK))
        )
        times, replies = spent.so_far(), [r for part in parts for r in part]
        prompt, cached = (sum(getattr(r, f"{x}_tokens") for r in replies) for x in ("prompt", "cached"))
        return Run(*times, [r.text for r in replies], cached / prompt)

    try:
        return asyncio.run(run())
    finally:
        client.close()
        ray.shutdown()


def texts(folder: Path, said: list[Any]) -> list[str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [s if isinstance(s, str) else tokenizer.decode(s, skip_special_tokens=True) for s in said]


def one_way(way: str, folder: str, asked: list[Chat], tokens: int) -> None:
    setup = Setup(folder, 4096, "float32")
    run = {"peer": peer, "engine": engine, "actor": actor}[way](setup, asked, tokens)
    print("RESULT " + json.dumps({"way": way, **asdict(run)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", default="peer,engine,actor")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--contexts", type=int, help="distinct ones (default: as many as chats)")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # one way, in this process
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one_way(args.one, args.folder, chats(args.chats, args.contexts or args.chats), args.tokens)
        return
    rng, runs = random.Random(0), []
    with tempfile.TemporaryDirectory() as temporary:
        built = standins.build(Path(temporary), [sentence(rng) for _ in range(2000)])
        for _ in range(args.rounds):
            for way in args.ways.split(","):
                command = [sys.executable, __file__, "--one", way, "--folder", str(built.chat)]
                command += ["--chats", str(args.chats), "--tokens", str(args.tokens)]
                command += ["--contexts", str(args.contexts or args.chats)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                (line,) = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
                runs.append(json.loads(line.removeprefix("RESULT ")))
                wall, cpu = runs[-1]["seconds"], runs[-1]["cpu"]
                print(f"{way}: {wall:.1f} s, {cpu:.1f} CPU s", file=sys.stderr, flush=True)
        first = runs[0]["said"]
        same = [
            sum(a == b for a, b in zip(first, r["said"], strict=True)) for r in runs if r["way"] != "actor"
        ]
        words = texts(built.chat, first)
        same_text = [
            sum(a == b for a, b in zip(words, texts(built.chat, r["said"]), strict=True)) for r in runs
        ]
    medians = {
        w: statistics.median(r["seconds"] for r in runs if r["way"] == w) for w in args.ways.split(",")
    }
    base = medians[runs[0]["way"]]
    report = {
        "chats": args.chats,
        "generated_tokens": sum(len(s) for s in first),
        "seconds": {w: [round(r["seconds"], 2) for r in runs if r["way"] == w] for w in medians},
        "ratio": {w: round(m / base, 3) for w, m in medians.items()},
        "cpu_seconds": {w: [round(r["cpu"], 1) for r in runs if r["way"] == w] for w in medians},
        "cached": {w: round(next(r["cached"] for r in runs if r["way"] == w), 3) for w in medians},
        "token_equal": min(same),
        "text_equal": min(same_text),
        "distinct": len(set(words)),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
