"""What evals measured on this machine, kept under $RAYPIPE_HOME: the first plan of a new store knows rates.

Copies of manifests, the last `KEPT` of them. Only what this machine measured counts.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from raypipe.api.origin import chip
from raypipe.api.settings import Settings
from raypipe.cluster.capacity import is_here
from raypipe.cluster.file import Cluster
from raypipe.core.errors import DataError
from raypipe.report.report import RunFolder
from raypipe.runs.manifest import Manifest, read

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
        try:
            found.append(read(folder))
        except DataError:
            continue
    return [m for m in found if m.origin.host == platform.node() and m.origin.chip in ("", chip())]


def _folders(settings: Settings) -> list[Path]:
    kept = settings.home / "measured"
    return sorted(kept.iterdir(), reverse=True) if kept.is_dir() else []
