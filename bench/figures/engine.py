"""Speed of the shared engine against vLLM's own `LLM.chat`, and equality of replies token by token.

Ways: `peer` (one `LLM.chat` over all chats), `engine` (the same chats as four concurrent callers of Engine),
`actor` (the same through a named Ray actor) and `data` (the processor of `ray.data.llm`). Each lives in a
process of its own, and they take turns: a round is the same chats to one after the other, so that whatever
else the machine does falls on all of them. Only the time between the first chat sent and the last reply
counts; `data` starts an engine each time, so a run of one chat is taken off, and its CPU is not measured.
Prints one JSON object.

    python bench/figures/engine.py [--ways peer,engine,data] [--rounds 4] [--chats 200] [--tokens 100]
        [--contexts 50] [--folder WEIGHTS --dtype bfloat16]

`--contexts` fewer than chats: chats share them, each caller asking once about every context, as the steps of
a recipe do; `cached` is the share of prompt tokens that came from the prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from raypipe.contrib.world import standins
from raypipe.core.llm import Chat, Generated, Message, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.engine import Engine
from raypipe.models.folder import identity
from raypipe.models.hosts import EngineLimits
from raypipe.models.vllm_terms import arguments

CALLERS = 4
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
    """Seconds and replies of one way."""

    seconds: float  # wall
    cpu: float  # seconds, of all its processes
    said: list[Any]  # token ids of each reply; of the actor their text, since replies cross processes as text
    cached: float  # share of prompt tokens that were not computed again


def chats(count: int, contexts: int, seed: int = 0) -> list[Chat]:
    """Chat i asks its own question about context i modulo `contexts`; another seed gives other contexts.
    Those that are shared have some 4,000 characters, as many as `crag-baseline` packs."""
    rng = random.Random(seed)
    least, most = (5, 40) if contexts == count else (80, 100)
    pages = [" ".join(sentence(rng) for _ in range(rng.randrange(least, most))) for _ in range(contexts)]
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


Say = Callable[[list[Chat]], Run]
"""Asks all chats and times it."""
Setup = tuple[Model, EngineLimits]


def setup_of(folder: Path, max_model_len: int, dtype: str, limits: EngineLimits) -> Setup:
    weights = identity(folder, "generator")
    model = Model("m", "generator", "vllm", "", "", str(folder), weights, dtype, max_model_len=max_model_len)
    return model, limits


@contextmanager
def peer(setup: Setup, sampling: Sampling) -> Iterator[Say]:
    from vllm import LLM, SamplingParams

    plain = arguments(*setup)
    for name in ("enable_chunked_prefill", "max_num_batched_tokens"):  # as vLLM comes
        plain.pop(name, None)
    llm = LLM(**plain)
    params = SamplingParams(temperature=0, max_tokens=sampling.max_tokens)

    def say(asked: list[Chat]) -> Run:
        messages: list[Any] = [[{"role": m.role, "content": m.content} for m in chat] for chat in asked]
        spent = Spent()
        outputs = llm.chat(messages, params, use_tqdm=False)
        return run_of(spent.so_far(), outputs)

    yield say


@contextmanager
def engine(setup: Setup, sampling: Sampling) -> Iterator[Say]:
    with asyncio.Runner() as loop:

        async def start() -> Engine:
            one = Engine(*setup)
            await one.ready()
            return one

        async def ask(asked: list[Chat]) -> Run:
            spent = Spent()
            parts = await asyncio.gather(*(one.outputs(block, sampling) for block in blocks(asked)))
            return run_of(spent.so_far(), [o for part in parts for o in part])

        one = loop.run(start())
        try:
            yield lambda asked: loop.run(ask(asked))
        finally:
            one.close()


@contextmanager
def actor(setup: Setup, sampling: Sampling) -> Iterator[Say]:
    import ray

    from raypipe.models import engine_actors

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    make = functools.partial(Engine, *setup, True)
    client = engine_actors.start_actor("engine-bench-0", make, {"CPU": 0.5})
    client.ready()

    async def ask(asked: list[Chat]) -> Run:
        spent = Spent()
        parts = await asyncio.gather(*(client.generate(block, sampling) for block in blocks(asked)))
        times, replies = spent.so_far(), [_reply(r) for part in parts for r in part]
        prompt, cached = (sum(getattr(r, f"{x}_tokens") for r in replies) for x in ("prompt", "cached"))
        return Run(*times, [r.text for r in replies], cached / prompt)

    try:
        with asyncio.Runner() as loop:
            yield lambda asked: loop.run(ask(asked))
    finally:
        client.close()
        ray.shutdown()


@contextmanager
def data(setup: Setup, sampling: Sampling) -> Iterator[Say]:
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    given = arguments(*setup)
    weights = given.pop("model")
    config = vLLMEngineProcessorConfig(
        model_source=weights,
        engine_kwargs=given | {"distributed_executor_backend": "mp"},
        batch_size=setup[1].max_num_seqs,
        placement_group_config={"bundles": [{"CPU": 1}]},
    )
    params = {"temperature": 0.0, "max_tokens": sampling.max_tokens}
    processor = build_processor(
        config,
        preprocess=lambda row: {"messages": row["messages"], "sampling_params": params},
        postprocess=lambda row: {"at": row["at"], "said": row["generated_tokens"]},
    )

    def run(asked: list[Chat]) -> tuple[float, list[Any]]:
        messages = [[{"role": m.role, "content": m.content} for m in chat] for chat in asked]
        started = time.perf_counter()
        rows = [{"at": at, "messages": chat} for at, chat in enumerate(messages)]
        found = processor(ray.data.from_items(rows)).take_all()
        seconds = time.perf_counter() - started
        return seconds, [list(row["said"]) for row in sorted(found, key=lambda row: row["at"])]

    def say(asked: list[Chat]) -> Run:
        start, _ = run(asked[:1])
        seconds, said = run(asked)
        return Run(seconds - start, math.nan, said, math.nan)

    try:
        yield say
    finally:
        ray.shutdown()


def blocks(asked: list[Chat]) -> list[list[Chat]]:
    """What each concurrent caller sends."""
    size = -(-len(asked) // CALLERS)
    return [asked[i : i + size] for i in range(0, len(asked), size)]


def texts(folder: Path, said: list[Any]) -> list[str]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [s if isinstance(s, str) else tokenizer.decode(s, skip_special_tokens=True) for s in said]


def one_way(way: str, args: argparse.Namespace) -> None:
    """Answers each round that is named on stdin with a line on stdout."""
    setup = setup_of(Path(args.folder), 4096, args.dtype, EngineLimits())
    sampling = Sampling(max_tokens=args.tokens)
    with {"peer": peer, "engine": engine, "actor": actor, "data": data}[way](setup, sampling) as say:
        say(chats(4, 4, seed=-1))
        print("READY", flush=True)
        for line in sys.stdin:
            run = say(chats(args.chats, args.contexts or args.chats, seed=int(line)))
            print("RESULT " + json.dumps(asdict(run)), flush=True)


class Way:
    """One way, in a process of its own."""

    def __init__(self, name: str, folder: Path, args: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--one", name, "--folder", str(folder)]
        command += ["--chats", str(args.chats), "--tokens", str(args.tokens)]
        command += ["--dtype", args.dtype, "--contexts", str(args.contexts or args.chats)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name = name
        self.runs: list[Run] = []

    def ready(self) -> None:
        """Returns once it accepts chats."""
        self._line("READY")

    def _line(self, head: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(head):
                return line.removeprefix(head)
        raise RuntimeError(f"{self.name} ended, status {self._process.wait()}")

    def round(self, number: int) -> None:
        assert self._process.stdin is not None
        print(number, file=self._process.stdin, flush=True)
        self.runs.append(Run(**json.loads(self._line("RESULT "))))
        print(f"{self.name}: {self.runs[-1].seconds:.1f} s, {self.runs[-1].cpu:.1f} CPU s", file=sys.stderr)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def _reply(reply: Generated | Fault) -> Generated:
    if isinstance(reply, Fault):
        raise SystemExit(f"a chat failed: {reply}")
    return reply


def report(ways: list[Way], folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    base, said = ways[0], {w.name: [r for run in w.runs for r in run.said] for w in ways}
    words = {name: texts(folder, replies) for name, replies in said.items()}
    told = [w for w in ways if w.name != "data"]  # whose CPU and cache are measured

    def total(way: Way, what: str) -> float:
        return float(sum(getattr(run, what) for run in way.runs))

    def same(found: dict[str, list[Any]]) -> dict[str, int]:
        first = found[base.name]
        return {name: sum(a == b for a, b in zip(first, x, strict=True)) for name, x in found.items()}

    return {
        "rounds": args.rounds,
        "chats": len(said[base.name]),
        "distinct_replies": len(set(words[base.name])),
        "generated_tokens": sum(len(r) for r in said[base.name]),
        "seconds": {w.name: [round(r.seconds, 2) for r in w.runs] for w in ways},
        "cpu_seconds": {w.name: [round(r.cpu, 1) for r in w.runs] for w in told},
        "ratio_of_seconds": {w.name: round(total(w, "seconds") / total(base, "seconds"), 3) for w in ways},
        "ratio_of_medians": {w.name: round(median(w) / median(base), 3) for w in ways},
        "ratio_of_cpu": {w.name: round(total(w, "cpu") / total(base, "cpu"), 3) for w in told},
        "cached": {w.name: round(statistics.mean(r.cached for r in w.runs), 3) for w in told},
        "token_equal": same({n: r for n, r in said.items() if n != "actor"}),
        "text_equal": same(words),
    }


def median(way: Way) -> float:
    seconds: float = statistics.median(run.seconds for run in way.runs)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", default="peer,engine,actor")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--contexts", type=int, help="distinct ones in a round (default: as many as chats)")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # one way, in this process
    parser.add_argument("--folder", help="weights, such as of `raypipe models fetch` (default: a stand-in)")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    if args.one:
        one_way(args.one, args)
        return
    rng, ways = random.Random(0), list[Way]()
    with tempfile.TemporaryDirectory() as temporary:
        made = [sentence(rng) for _ in range(2000)]
        folder = Path(args.folder) if args.folder else standins.build(Path(temporary), made).chat
        try:
            for name in args.ways.split(","):
                ways.append(Way(name, folder, args))
            for way in ways:
                way.ready()
            for i in range(args.rounds):
                for way in ways if i % 2 == 0 else ways[::-1]:
                    way.round(i)
            print(json.dumps(report(ways, folder, args)))
        finally:
            for way in ways:
                way.close()


if __name__ == "__main__":
    main()
