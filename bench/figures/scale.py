#!/usr/bin/env python3
"""Forecasts time, GPU-hours, disk and bottleneck of large jobs from measured runs.

    python bench/figures/scale.py measure --pages 500 5000 --out rates.json   # runs the corpus half
    python bench/figures/scale.py check rates.json --pages 50000      # runs that, too, and compares
    python bench/figures/scale.py table rates.json --gpu gpu.json     # 1e3 to 1e8 pages on 1 to 64 GPUs

`measure` times `raypipe eval --until index` over invented pages with computing fakes, and fits seconds
= fixed + pages x each, and so bytes; it compares memory and CPU seconds between sizes. `table` scales the CPU
measurements to real pages by their characters, takes the models' rates of `bench/gpu.py`, and says which of
them are missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))
from memory import EVERY_S, Peak, sample

RECIPE = "tests/support/fakes.yaml"
PER_QUESTION = 50
PAGE_CHARS = 2000
MODELS = {"embed": "pages_per_gpu_s", "rerank": "pairs_per_gpu_s", "generate": "prompt_tokens_per_gpu_s"}

# A page of CRAG: 319 KB of HTML, 22 KB of text, 4,700 tokens, 31 chunks of 700 characters (measured on the 36
# distinct real pages of its development data).
REAL = {"html_bytes": 319_000, "text_chars": 22_000, "tokens": 4_700, "chunks": 31}
PROMPT_TOKENS = 4_500  # of one question: 4,000 of context, its question and instructions
PAIRS = 50  # reranked for one question


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of the corpus half over invented pages."""

    pages: int  # distinct sources that were parsed: pages, and snippets where the recipe reads them
    seconds: float  # on the clock
    work_s: float  # of all workers together, inside the stages
    cpu_s: float  # of driver and workers, their start included
    driver_bytes: int  # most resident memory
    worker_bytes: int  # of the largest worker
    store_bytes: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Fixed and per-page costs: a straight line through the smallest and the largest run."""

    fixed_s: float  # of a run, however small
    page_s: float  # on the clock, for one more page
    work_s: float  # of one worker, for one more page
    page_bytes: float  # of the store, for one more page
    workers: int


def prepare(questions: int, folder: Path, chars: int) -> None:
    """Invents pages and reads them into a store. Raises CalledProcessError if that fails."""
    raypipe = [sys.executable, "-m", "raypipe"]
    data, store = str(folder / "data"), str(folder / "store")
    sizes = ["--questions", str(questions), "--pages", str(PER_QUESTION), "--page-chars", str(chars)]
    subprocess.run([*raypipe, "synth", data, *sizes], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*raypipe, "ingest", data, "--store", store], check=True, stdout=subprocess.DEVNULL)


def timed(folder: Path, recipe: str) -> Measured:
    """The corpus half over a prepared store. Raises SystemExit if it fails."""
    store = str(folder / "store")
    command = [sys.executable, "-m", "raypipe", *f"eval {recipe} --until index --json --store".split(), store]
    start, peak = time.perf_counter(), Peak()
    with (folder / "said.json").open("w+") as said:
        index = subprocess.Popen(command, stdout=said)
        watched = psutil.Process(index.pid)
        while index.poll() is None:
            sample(watched, peak)
            time.sleep(EVERY_S)
        if index.returncode:
            raise SystemExit(f"index over {store} ended with {index.returncode}")
        seconds = time.perf_counter() - start
        said.seek(0)
        steps = json.load(said)["steps"]
    size = sum(f.stat().st_size for f in Path(store).rglob("*") if f.is_file())
    pages = steps["parse"]["rows"]
    work = sum(s["seconds"] for s in steps.values())
    return Measured(pages, seconds, work, peak.cpu_s, peak.driver, peak.worker, size)


def measure(pages: int, recipe: str, chars: int) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        prepare(max(1, pages // PER_QUESTION), Path(folder), chars)
        return timed(Path(folder), recipe)


def fastest(runs: Sequence[Measured]) -> list[Measured]:
    """One run of each size, by size: what else a machine does only ever adds."""
    return list({r.pages: r for r in sorted(runs, key=lambda r: (r.pages, -r.seconds))}.values())


def fitted(runs: Sequence[Measured], workers: int) -> Rates:
    """The line through the smallest and the largest run. Raises ValueError for runs of one size.

    >>> runs = [Measured(100, 12.0, 4.0, 9.0, 0, 0, 1000), Measured(1100, 22.0, 24.0, 33.0, 0, 0, 51000)]
    >>> fitted(runs, 2)
    Rates(fixed_s=11.0, page_s=0.01, work_s=0.02, page_bytes=50.0, workers=2)
    """
    sizes = fastest(runs)
    few, many = sizes[0], sizes[-1]
    more = many.pages - few.pages
    if not more:
        raise ValueError("expected runs of at least two sizes")
    page_s = (many.seconds - few.seconds) / more
    return Rates(
        fixed_s=few.seconds - page_s * few.pages,
        page_s=page_s,
        work_s=(many.work_s - few.work_s) / more,
        page_bytes=(many.store_bytes - few.store_bytes) / more,
        workers=workers,
    )


def predicted(rates: Rates, pages: int) -> float:
    """Wall seconds, on the machine that was measured.

    >>> predicted(Rates(10.0, 0.01, 0.02, 50.0, 2), 50_000)
    510.0
    """
    return rates.fixed_s + rates.page_s * pages


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a job: real pages, fifty to a question, on GPUs with sixteen cores each."""

    pages: int
    gpus: int
    hours: float
    gpu_hours: float
    store_gib: float
    bottleneck: str
    share: float  # 0..1, of the hours


CORES = 16  # per GPU
REAL_PARSE_PAGES_S = 400.0  # of one core: docs/performance.md, real pages, in a child process under limits


def forecast(rates: Rates, gpu: dict[str, float], pages: int, gpus: int) -> Forecast:
    """Stages one after the other, each spread evenly over all cores or all GPUs: no queue and no skew, so it
    is the least that it takes. A rate that `gpu` has not is left out."""
    questions = pages / PER_QUESTION
    # What follows the parser (split, words, writing) goes by characters of text.
    texts_s = rates.work_s * REAL["text_chars"] / PAGE_CHARS
    clock = {"parse, split, write": pages * (1 / REAL_PARSE_PAGES_S + texts_s) / (CORES * gpus)}
    wanted = {"embed": pages, "rerank": questions * PAIRS, "generate": questions * PROMPT_TOKENS}
    for stage, amount in wanted.items():
        if (rate := gpu.get(MODELS[stage])) is not None:
            clock[stage] = amount / (rate * gpus)
    total = rates.fixed_s + sum(clock.values())
    slowest = max(clock, key=lambda stage: clock[stage])
    on_gpus = sum(s for stage, s in clock.items() if stage in MODELS) * gpus
    # An upper bound: HTML as it comes, and bge-base's vectors on top of the fakes' of 256 numbers, which
    # page_bytes already counts.
    texts = (rates.page_bytes - PAGE_CHARS) * REAL["text_chars"] / PAGE_CHARS
    store = pages * (REAL["html_bytes"] + texts + REAL["chunks"] * 768 * 4)
    return Forecast(
        pages, gpus, total / 3600, on_gpus / 3600, store / (1 << 30), slowest, clock[slowest] / total
    )


def _measure(args: argparse.Namespace) -> None:
    runs = []
    for pages in args.pages:
        runs.append(measure(pages, args.recipe, args.page_chars))
        print(json.dumps(asdict(runs[-1])), flush=True)
    cores = psutil.cpu_count() or 1
    args.out.write_text(json.dumps({"runs": [asdict(r) for r in runs], "workers": min(2, cores)}, indent=1))
    _compare(runs)


def marginal(few: Measured, many: Measured) -> float:
    """CPU seconds of one more page between two runs; both include one start, which cancels out.

    >>> marginal(Measured(100, 12.0, 4.0, 9.0, 0, 0, 0), Measured(1100, 22.0, 24.0, 33.0, 0, 0, 0))
    0.024
    """
    return (many.cpu_s - few.cpu_s) / (many.pages - few.pages)


def _compare(runs: Sequence[Measured]) -> None:
    """Each size against the next larger one."""
    for few, many in pairwise(fastest(runs)):
        rows = (
            ("driver memory", few.driver_bytes, many.driver_bytes),
            ("worker memory", few.worker_bytes, many.worker_bytes),
            ("CPU seconds a page", few.cpu_s / few.pages, many.cpu_s / many.pages),
        )
        for what, a, b in rows:
            print(f"{what}, {many.pages} pages to {few.pages}: {b / a:.2f}")
        print(f"one more page, {few.pages} to {many.pages}: {marginal(few, many) * 1000:.2f} ms of CPU")


def _read(file: Path) -> tuple[Rates, list[Measured]]:
    tree = json.loads(file.read_text())
    runs = [Measured(**r) for r in tree["runs"]]
    return fitted(runs, tree["workers"]), runs


def _check(args: argparse.Namespace) -> None:
    rates, runs = _read(args.rates)
    found = measure(args.pages, args.recipe, args.page_chars)
    said = predicted(rates, found.pages)
    off = said / found.seconds - 1
    print(json.dumps(asdict(found)))
    _compare([*runs, found])
    print(f"{found.pages} pages: predicted {said:.0f} s, took {found.seconds:.0f} s, {off:+.0%}")
    if abs(off) > 0.25:
        raise SystemExit("the prediction is more than 25 % off")


def _table(args: argparse.Namespace) -> None:
    rates, _ = _read(args.rates)
    gpu = json.loads(args.gpu.read_text()) if args.gpu else {}
    missing = [stage for stage, rate in MODELS.items() if rate not in gpu]
    if missing:
        print(f"without {', '.join(missing)}: no rate was given. bench/gpu.py --out measures them on a GPU")
    print(f"{'pages':>12} {'GPUs':>5} {'hours':>10} {'GPU-hours':>10} {'store GiB':>10}  takes the longest")
    for power in range(3, 9):
        for gpus in (1, 4, 16, 64):
            f = forecast(rates, gpu, 10**power, gpus)
            row = f"{f.pages:>12,} {f.gpus:>5} {f.hours:>10.2f} {f.gpu_hours:>10.2f} {f.store_gib:>10.1f}"
            print(f"{row}  {f.bottleneck} ({f.share:.0%})")


def _what(command: argparse.ArgumentParser) -> None:
    command.add_argument("--recipe", default=RECIPE, help=f"whose corpus half (default: {RECIPE})")
    command.add_argument("--page-chars", type=int, default=PAGE_CHARS, help=f"default: {PAGE_CHARS}")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(required=True)
    made = commands.add_parser("measure")
    made.add_argument("--pages", type=int, nargs="+", default=[500, 5000])
    made.add_argument("--out", type=Path, default=Path("rates.json"))
    _what(made)
    made.set_defaults(run=_measure)
    made = commands.add_parser("check")
    made.add_argument("rates", type=Path)
    made.add_argument("--pages", type=int, default=50_000)
    _what(made)
    made.set_defaults(run=_check)
    made = commands.add_parser("table")
    made.add_argument("rates", type=Path)
    made.add_argument("--gpu", type=Path, help="what bench/gpu.py --out wrote")
    made.set_defaults(run=_table)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
