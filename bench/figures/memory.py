#!/usr/bin/env python3
"""Memory of `raypipe eval` by size of the data: driver, largest worker, all processes.

    python bench/figures/memory.py --questions 50 200

Evaluates invented data of two sizes. Prints, for each size, wall time and the most resident memory of the
driver, of the largest worker, and of all processes together; then the ratio of the larger size to the
smaller. Each size gets a fresh store.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

EVERY_S = 0.5  # a peak of all processes together that is shorter may be missed, one of a single process not
ACTOR, PARSER = "ray::MapWorker", "raypipe.core.sandbox"  # in their command lines


@dataclass(slots=True)
class Peak:
    """Peak resident memory (bytes) and CPU seconds of a driver and the processes below it.

    A worker is an actor that does parts, or the page parser below it. Ray's own services are not counted:
    their memory grows with time, not with data.
    """

    driver: int = 0
    worker: int = 0  # of the largest
    total: int = 0  # of all together, Ray's services included
    seconds: dict[psutil.Process, float] = field(default_factory=dict)  # of CPU, by driver and workers

    @property
    def cpu_s(self) -> float:
        """Of driver and workers together; what a process took after it was last looked at is missing."""
        return sum(self.seconds.values())


def sample(driver: psutil.Process, peak: Peak) -> None:
    """Samples a driver and everything below it once. A process that ends meanwhile is skipped.

    Of one process it reads the kernel's own high-water mark, so that a longer run, which is looked at more
    often, does not seem to need more for that alone.
    """
    total = 0
    for process in [driver, *driver.children(recursive=True)]:
        try:
            with process.oneshot():
                memory, cpu, line = process.memory_info(), process.cpu_times(), process.cmdline()
                most = highest(process.pid)
        except (psutil.Error, OSError):
            continue
        total += memory.rss
        if process == driver:
            peak.driver = max(peak.driver, most)
        elif PARSER in line or any(ACTOR in word for word in line[:1]):
            peak.worker = max(peak.worker, most)
        else:
            continue
        peak.seconds[process] = cpu.user + cpu.system
    peak.total = max(peak.total, total)


def highest(pid: int) -> int:
    """The most resident memory a process ever had, bytes: the kernel's VmHWM. Raises OSError for one that is
    gone; a process that ends keeps no memory and says 0."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def run(recipe: str, questions: int, pages: int, page_chars: int, folder: Path) -> tuple[float, Peak]:
    """Seconds and peaks of one eval over `questions` questions."""
    raypipe = [sys.executable, "-m", "raypipe"]
    data = folder / "data"
    sizes = ["--questions", str(questions), "--pages", str(pages), "--page-chars", str(page_chars)]
    subprocess.run([*raypipe, "synth", str(data), *sizes], check=True)
    places = ["--data", str(data), "--store", str(folder / "store"), "--out", str(folder / "out")]
    start, peak = time.perf_counter(), Peak()
    eval_process = subprocess.Popen([*raypipe, "eval", recipe, *places])
    watched = psutil.Process(eval_process.pid)
    while eval_process.poll() is None:
        sample(watched, peak)
        time.sleep(EVERY_S)
    if eval_process.returncode:
        raise SystemExit(f"eval of {questions} questions ended with {eval_process.returncode}")
    return time.perf_counter() - start, peak


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--recipe", default="local")
    parser.add_argument("--questions", type=int, nargs=2, default=[50, 200])
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--page-chars", type=int, default=2000)
    args = parser.parse_args()
    found = []
    for questions in args.questions:
        with tempfile.TemporaryDirectory() as folder:
            found.append(run(args.recipe, questions, args.pages, args.page_chars, Path(folder)))
    heads = ("questions", "citations", "seconds", "driver MB", "worker MB", "all MB")
    print(" ".join(f"{head:>10}" for head in heads))
    for questions, (seconds, peak) in zip(args.questions, found, strict=True):
        sizes = (peak.driver >> 20, peak.worker >> 20, peak.total >> 20)
        row = (questions, questions * args.pages, round(seconds), *sizes)
        print(" ".join(f"{value:>10}" for value in row))
    small, large = found[0][1], found[1][1]
    ratios = (large.driver / small.driver, large.worker / small.worker, large.total / small.total)
    print("ratio".rjust(32), *(f"{ratio:>10.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
