#!/usr/bin/env python3
"""Throughput of models on a GPU, ours next to the library's own, as one Markdown table.

    python bench/gpu.py --out gpu.json                    # on a GPU: bge-base, MiniLM, bge-reranker-v2-m3
    python bench/gpu.py --parts engine --out gpu.json     # Llama-3-8B next to vLLM's LLM.chat; needs vllm
    python bench/gpu.py --size toy                        # anywhere, on tiny shapes: shows that it runs

Needs Python 3.11 to 3.13, this checkout, torch, transformers, pyarrow and PyYAML; and sentence-transformers
to compare with. A model is read from its folder below --models. One that is not there gets its real shape
and random weights, made on the spot: weights do not change how long a product takes.

- embed: chunks of some 700 characters to vectors.
- rerank: pairs of a question and such a chunk to scores.
- pool: a stream of ragged texts, in tasks, to vectors: the way of an eval where embedders have GPUs, without
  Ray. Processes with CPUs tokenize tasks ahead; one with the device takes their arrays, sorted by
  length and filled to a budget of tokens. Next to it the library's own pool of processes.
- engine: prompts read and tokens written.

Each part has a process of its own and at most 8 minutes. The library has the best of some batch sizes and
numbers of processes. The limit is the chip's rate of dense float16 products by its maker; of a chip that is
not in `gpu_models.CHIPS`, the rate of a product that is measured here. `bench/figures/scale.py table --gpu`
reads what --out writes; the table goes next to it.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))  # whatever else is installed
sys.path.insert(0, str(Path(__file__).resolve().parent / "figures"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np
from gpu_models import LOADS, MAX_TOKENS, PARTS, Load, Shape, decoder, encoder, stream, texts_of
from gpu_table import Line, Timing, rates, table

from raypipe.core.llm import Chat, Message, Sampling
from raypipe.core.protocols import Model
from raypipe.models.hosts import EngineLimits
from raypipe.models.load import open_model

PART_S = 480.0  # of a part: an hour that is lent has all of them, and some for mistakes
TRIES = 5  # of a timing, as far as its time goes; the fastest counts: what else runs only ever adds
SEEN = 256  # texts whose vectors or scores are compared
PEER = "sentence-transformers"
QUIET = {"show_progress_bar": False}


@dataclass(frozen=True, slots=True)
class Bench:
    """What all parts have."""

    models: Path
    load: Load
    device: str

    def timed(self, work: Callable[[], Any], how: str = "") -> Timing:
        """Times the work, after once to warm up."""
        import torch

        gpu = self.device != "cpu"
        gc.collect()  # of a network that was timed before
        if gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        taken, late = list[float](), time.monotonic() + self.load.timing_s
        while len(taken) < 2 or (len(taken) <= TRIES and time.monotonic() + taken[-1] < late):
            start = time.perf_counter()
            work()
            if gpu:
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - start)
        return Timing(min(taken[1:]), torch.cuda.max_memory_allocated() if gpu else None, how)

    def ours(self, model: Model, work: Callable[[Any, int], Any], how: str = "") -> tuple[Timing, Any]:
        """Times our class; `work` takes it and a number of texts. Also gives the output for SEEN of them."""
        opened = open_model(model, "transformers", self.device)
        return self.timed(lambda: work(opened, sys.maxsize), how), work(opened, SEEN)

    def library(self, model: Model, work: Callable[[Any, int, int], Any]) -> tuple[list[Timing], Any]:
        """The same of the library's class, in each batch size; none where it is not installed."""
        if (peer := open_peer(model, self.device)) is None:
            return [], None
        sizes = self.load.batches
        found = [
            self.timed(lambda n=size: work(peer, n, sys.maxsize), f"batches of {size}")  # type: ignore[misc]
            for size in sizes
        ]
        return found, work(peer, sizes[0], SEEN)

    def line(
        self,
        part: str,
        shape: Shape,
        given: tuple[Sequence[str], ...],
        unit: str,
        ours: Timing,
        theirs: Sequence[Timing],
        far: float | None,
    ) -> Line:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.models / shape.name)
        found = tokenizer(*map(list, given), truncation=True, max_length=MAX_TOKENS)["input_ids"]
        lengths = list(map(len, found))
        flops = sum(map(shape.encoder_flops, lengths))
        fastest = min(theirs, key=lambda t: t.seconds, default=None)
        peer = f"{PEER} {importlib.metadata.version(PEER)}" if fastest else PEER
        return Line(part, shape.name, unit, len(lengths), sum(lengths), flops, ours, peer, fastest, far)


def open_peer(model: Model, device: str) -> Any:
    """The library's own class over the same folder; None where it is not installed."""
    if importlib.util.find_spec(PEER.replace("-", "_")) is None:
        return None
    import sentence_transformers as st

    if model.kind == "reranker":
        peer: Any = st.CrossEncoder(model.path, device=device, max_length=MAX_TOKENS)
    else:
        peer = st.SentenceTransformer(model.path, device=device)
        peer.max_seq_length = MAX_TOKENS
    return peer.half() if device != "cpu" else peer.float()


def angle(a: Any, b: Any) -> float | None:
    """One minus the cosine of two rows, at most; None where there is nothing to compare with."""
    if b is None:
        return None
    a, b = (np.asarray(x, np.float64) for x in (a, b))
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return float((1 - cosines).max())


def embed(shape: Shape, bench: Bench) -> Line:
    model, texts = encoder(shape, bench.models, bench.device), texts_of(bench.load.texts, 90, 130, seed=0)
    mine, vectors = bench.ours(model, lambda m, n: m.embed(texts[:n], "passage"))
    theirs, others = bench.library(model, lambda m, size, n: m.encode(texts[:n], batch_size=size, **QUIET))
    return bench.line("embed", shape, (texts,), "texts", mine, theirs, angle(vectors, others))


def rerank(shape: Shape, bench: Bench) -> Line:
    model, count = encoder(shape, bench.models, bench.device), bench.load.texts // 4
    queries, passages = texts_of(count, 8, 16, seed=1), texts_of(count, 90, 130, seed=0)
    pairs = list(zip(queries, passages, strict=True))
    mine, scores = bench.ours(model, lambda m, n: m.score(pairs[:n]))
    theirs, others = bench.library(model, lambda m, size, n: m.predict(pairs[:n], batch_size=size, **QUIET))
    far = None if others is None else float(np.abs(scores - others).max())
    return bench.line("rerank", shape, (queries, passages), "pairs", mine, theirs, far)


_makers = list[Any]()  # of a process that tokenizes: one


def start_tokenizing(model: Model) -> None:
    from raypipe.models.token_arrays import TokenMaker

    _makers.append(TokenMaker(model))


def tokenized(texts: list[str]) -> Any:
    return _makers[0].table(texts, "passage")


def pool(shape: Shape, bench: Bench) -> Line:
    from raypipe.models.token_arrays import arrays_of

    model, tasks = encoder(shape, bench.models, bench.device), stream(bench.load)
    texts = [text for task in tasks for text in task]
    workers = max(1, min(8, len(os.sched_getaffinity(0)) - 1))

    def embedded(ours: Any, some: list[list[str]]) -> np.ndarray:
        rest, vectors = iter(some), list[np.ndarray]()
        waiting = deque(processes.submit(tokenized, task) for task in islice(rest, 2 * workers))
        while waiting:
            table = waiting.popleft().result()
            waiting.extend(processes.submit(tokenized, task) for task in islice(rest, 1))
            vectors.append(ours.embed_tokens(list(arrays_of(table).values())))
        return np.concatenate(vectors)

    with ProcessPoolExecutor(workers, get_context("spawn"), start_tokenizing, (model,)) as processes:
        first = -(-SEEN // bench.load.task_texts)
        some = {SEEN: tasks[:first], sys.maxsize: tasks}
        mine, vectors = bench.ours(model, lambda m, n: embedded(m, some[n]), f"{workers} tokenize")
    theirs, far = list[Timing](), None
    if (peer := open_peer(model, bench.device)) is not None:
        size, chunk = bench.load.batches[-1], 4 * bench.load.task_texts
        for count in bench.load.processes:
            started = peer.start_multi_process_pool([bench.device] * count)
            try:
                more = {"pool": started, "chunk_size": chunk, "batch_size": size}
                how = f"{count} processes, batches of {size}"
                timing = bench.timed(lambda more=more: peer.encode(texts, **more), how)  # type: ignore[misc]
                theirs.append(replace(timing, peak=None))  # of other processes
            finally:
                peer.stop_multi_process_pool(started)
        far = angle(vectors, peer.encode(texts[: len(vectors)], **QUIET))
    return bench.line("pool", shape, (texts,), "texts", mine, theirs, far)


def engine(shape: Shape, bench: Bench, way: str) -> Line:
    """By our engine (`ours`), or by vLLM's own `LLM.chat` (`library`): each needs the whole chip."""
    import engine as by_vllm  # bench/figures/engine.py
    from transformers import AutoTokenizer

    gpu, load = bench.device != "cpu", bench.load
    path = decoder(shape, bench.models, bench.device)
    limits = EngineLimits("cuda" if gpu else "cpu")
    setup = by_vllm.setup_of(path, 8192, "float16" if gpu else "float32", limits)
    texts = texts_of(load.chats, load.prompt_words, load.prompt_words, seed=4)
    head = Message("system", "Answer in one line.")
    chats: list[Chat] = [(head, Message("user", f"{text}\nWhy?")) for text in texts]
    prompt = sum(map(len, AutoTokenizer.from_pretrained(path)(texts)["input_ids"]))
    opened = {"ours": by_vllm.engine, "library": by_vllm.peer}[way]
    with opened(setup, Sampling(max_tokens=load.reply_tokens)) as say:
        say(chats[:2])
        run = say(chats)
    written = sum(map(len, run.said))
    flops = 2.0 * shape.decoder_weights() * (prompt + written)
    # Every step of a batch reads all weights once.
    read = shape.decoder_weights() * (2 if gpu else 4) * written / len(chats)
    peer, mine = f"vllm {importlib.metadata.version('vllm')}", Timing(run.seconds)
    tokens = prompt + written
    return Line("engine", shape.name, "chats", len(chats), tokens, flops, mine, peer, bytes_read=read)


def measure_chip(bench: Bench) -> dict[str, Any]:
    """Name, and the matrix rate (flop/s, in the dtype that models compute in) and bandwidth as measured."""
    import torch

    gpu = bench.device != "cpu"
    side, size = (8192, 1 << 30) if gpu else (1024, 1 << 26)
    dtype = torch.float16 if gpu else torch.float32
    a, b = (torch.randn(side, side, dtype=dtype, device=bench.device) for _ in range(2))
    source = torch.zeros(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    rate = 2 * side**3 / bench.timed(lambda: a @ b).seconds
    moved = 2 * size / bench.timed(lambda: target.copy_(source)).seconds
    name = torch.cuda.get_device_name() if gpu else "CPU"
    return {"chip": name, "dtype": str(dtype), "flop_per_s": rate, "bytes_per_s": moved}


def one(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What one part measures, in this process."""
    part, _, way = args.one.partition(":")
    bench = Bench(args.models, LOADS[args.size], args.device)
    if part == "chip":
        yield measure_chip(bench)
        return
    encoders: dict[str, Callable[[Shape, Bench], Line]] = {"embed": embed, "rerank": rerank, "pool": pool}
    shapes = PARTS[part] if args.size == "real" else [PARTS[part][0].tiny()]
    for shape in shapes:
        yield asdict(engine(shape, bench, way) if way else encoders[part](shape, bench))


def apart(part: str, args: argparse.Namespace, late: float) -> tuple[list[dict[str, Any]], list[str]]:
    """What one part measures, in a process of its own, so that each finds the chip empty; and why it ended
    before all was measured."""
    command = [sys.executable, __file__, "--one", part, "--size", args.size, "--device", args.device]
    command += ["--models", str(args.models)]
    failures = list[str]()
    with tempfile.TemporaryFile("w+") as said:  # libraries fill stderr with bars
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, start_new_session=True
        )
        try:
            out, _ = child.communicate(timeout=max(1.0, late - time.monotonic()))
        except subprocess.TimeoutExpired:
            failures.append(f"{part}: stopped after {PART_S:g} s")
            os.killpg(child.pid, signal.SIGKILL)  # with the processes that it started
            out, _ = child.communicate()
        if child.returncode and not failures:
            said.seek(0)
            failures.append(f"{part} ended with {child.returncode}:\n\n{said.read()[-4000:]}")
    return [json.loads(x[7:]) for x in out.split("\n") if x.startswith("RESULT ")], failures


def lines_of(part: str, args: argparse.Namespace) -> tuple[list[Line], list[str]]:
    late = time.monotonic() + PART_S
    if part != "engine":
        found, failures = apart(part, args, late)
        return list(map(Line.of, found)), failures
    ours, failures = apart("engine:ours", args, late)
    theirs, more = apart("engine:library", args, late)
    both = [{**a, "library": b["ours"]} for a, b in zip(ours, theirs, strict=False)]
    return list(map(Line.of, both or ours)), failures + more


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["embed", "rerank", "pool"])
    parser.add_argument("--size", choices=LOADS, help="default: real shapes on a GPU, toy ones without")
    parser.add_argument("--device", help="default: cuda where there is a GPU, else cpu")
    parser.add_argument("--models", type=Path, help="folder of models' folders; what is made stays there")
    parser.add_argument(
        "--out", type=Path, help="JSON for bench/figures/scale.py, and .md; refused for toy shapes"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        for line in one(args):
            print("RESULT " + json.dumps(line), flush=True)
        return 0
    if "engine" in args.parts and importlib.util.find_spec("vllm") is None:
        get = "pip install 'raypipe[gpu]'. The other parts need none"
        parser.error(f"--parts engine needs the package vllm, which is not installed: {get}")
    import torch

    gpu = torch.cuda.is_available()
    args.size = args.size or ("real" if gpu else "toy")
    args.device = args.device or ("cuda" if gpu else "cpu")
    if args.out and args.size == "toy":
        parser.error("--out: rates of toy shapes forecast nothing")
    with tempfile.TemporaryDirectory(prefix="raypipe-gpu-") as made:
        args.models = args.models or Path(made)
        chips, failures = apart("chip", args, time.monotonic() + PART_S)
        if failures:
            raise SystemExit(failures[0])
        lines, text = list[Line](), ""
        for part in args.parts:
            found, more = lines_of(part, args)
            lines, failures = lines + found, failures + more
            text = table(chips[0], lines, failures)
            if args.out:  # after each part: what was measured is kept, whatever comes after it
                args.out.write_text(json.dumps(rates(chips[0], lines), indent=1) + "\n")
                args.out.with_suffix(".md").write_text(text)
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
