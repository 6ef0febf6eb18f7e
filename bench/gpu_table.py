"""Lines of `bench/gpu.py`: what was timed, as a Markdown table and as rates for forecasts."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_models import BGE, by_maker

PAGE_TOKENS = 4700  # of a real page of CRAG


@dataclass(frozen=True, slots=True)
class Timing:
    """The fastest try."""

    seconds: float
    peak: int | None = None  # bytes of the GPU's memory that this process took; None: no GPU, or others did
    how: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    part: str
    model: str
    unit: str  # texts, pairs or chats
    count: int
    tokens: int
    flops: float  # that these tokens need, without padding
    ours: Timing
    peer: str  # name of the library, with its version
    library: Timing | None = None  # None: it is not installed
    far: float | None = None  # ours from the library's: one minus a cosine, or of a score, at most
    bytes_read: float = 0.0  # of weights, by a decoder

    @classmethod
    def of(cls, tree: dict[str, Any]) -> Line:
        timings = {k: Timing(**tree[k]) for k in ("ours", "library") if tree[k]}
        return cls(**{**tree, **timings})


HEADS = (
    "part",
    "model",
    "ours",
    "library",
    "ratio",
    "share of the limit: ours, library",
    "peak GPU memory: ours, library",
    "apart by",
)


def row(line: Line, flop_per_s: float, bytes_per_s: float) -> tuple[str, ...]:
    """A line as cells, against the chip's limits."""

    def rate(t: Timing) -> str:
        shown = f"{line.count / t.seconds:,.0f} {line.unit}/s, {line.tokens / t.seconds:,.0f} tokens/s"
        return f"{shown} ({t.how})" if t.how else shown

    def share(t: Timing) -> str:
        read = (
            f" ({line.bytes_read / t.seconds / bytes_per_s:.0%} of the bandwidth)" if line.bytes_read else ""
        )
        return f"{line.flops / t.seconds / flop_per_s:.1%}{read}"

    def memory(t: Timing) -> str:
        return "-" if t.peak is None else f"{t.peak / (1 << 30):.1f} GiB"

    both = [t for t in (line.ours, line.library) if t is not None]
    shares, peaks = (", ".join(map(shown, both)) for shown in (share, memory))
    far = "" if line.far is None else f"{line.far:.0e}"
    if line.library is None:
        return line.part, line.model, rate(line.ours), f"{line.peer}: not installed", "", shares, peaks, far
    ratio = f"{line.library.seconds / line.ours.seconds:.2f}"
    library = f"{line.peer}: {rate(line.library)}"
    return line.part, line.model, rate(line.ours), library, ratio, shares, peaks, far


def table(chip: dict[str, Any], lines: Sequence[Line], failures: Sequence[str]) -> str:
    """The Markdown: the chip's limits, a line for each model of a part, and what failed."""
    flop_per_s, bytes_per_s = chip["flop_per_s"], chip["bytes_per_s"]
    said = f"measured {flop_per_s / 1e9:,.0f} GFLOP/s ({chip['dtype']}), {bytes_per_s / 1e9:,.0f} GB/s"
    if (made := by_maker(chip["chip"])) is not None:
        flop_per_s, bytes_per_s = made.flop_per_s, made.bytes_per_s
        said += f"; limit {flop_per_s / 1e9:,.0f} GFLOP/s, {bytes_per_s / 1e9:,.0f} GB/s ({made.source})"
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("torch", "transformers"))
    head = f"{datetime.date.today()}, {chip['chip']}: {said}. Python {platform.python_version()}, {versions}."
    rows = [HEADS, ("---",) * len(HEADS), *(row(line, flop_per_s, bytes_per_s) for line in lines)]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return "\n\n".join([head, text, *failures]) + "\n"


def rates(chip: dict[str, Any], lines: Sequence[Line]) -> dict[str, Any]:
    """The rates that `bench/figures/scale.py` forecasts from."""
    found: dict[str, Any] = {"chip": chip, "date": str(datetime.date.today())}
    for line in lines:
        tokens = line.tokens / line.ours.seconds
        if (line.part, line.model) == ("embed", BGE.name):
            found["pages_per_gpu_s"] = tokens / PAGE_TOKENS
        elif line.part == "rerank":
            found["pairs_per_gpu_s"] = line.count / line.ours.seconds
        elif line.part == "engine":
            found["prompt_tokens_per_gpu_s"] = tokens
    return found
