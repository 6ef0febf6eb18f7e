"""Environment of this process: CPUs, versions of packages, and the commit of the code."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
WRITTEN = PACKAGE / "COMMIT"  # a wheel has this file; hatch_build.py writes it


def commit() -> str:
    """Returns the commit from which the package was built, else that of its checkout; "" if it is unknown."""
    return WRITTEN.read_text(encoding="ascii").strip() if WRITTEN.is_file() else commit_of(PACKAGE)


def commit_of(folder: Path) -> str:
    """Returns the commit of the checkout around a folder (-dirty if files differ); "" if git gives none."""
    try:
        said = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):  # git is not installed, or the checkout is too slow
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Returns name -> version of the installed packages among `packages`."""
    found = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def cores(root: Path = Path("/")) -> int:
    """Counts the CPUs that this process may use, at least one, by its affinity and cgroup quotas. With more
    threads, a quota would stop all of them for the rest of each period. `root` holds proc and sys."""
    seen = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(seen, *map(math.ceil, [seen, *_quotas(root)])))


def _quotas(root: Path) -> list[float]:
    """Returns the CPU limits of the cgroups (versions 1 and 2) around this process, where they have one."""
    quotas = list[float]()
    lines = (line.split(":", 2) for line in _text(root / "proc/self/cgroup").split())
    for _, controllers, path in lines:
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        inside = top.joinpath(*Path(path).parts[1:])
        for place in (inside, *(p for p in inside.parents if p.is_relative_to(top))):
            if controllers:
                limits = [_text(place / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
            else:
                limits = _text(place / "cpu.max").split()
            if len(limits) == 2 and all(limit.isdecimal() for limit in limits) and int(limits[1]):
                quotas.append(int(limits[0]) / int(limits[1]))  # "max" and -1: no limit
    return quotas


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def processor() -> str:
    return value_in(Path("/proc/cpuinfo"), "model name") or platform.processor() or platform.machine()


def value_in(file: Path, name: str) -> str:
    """Returns the value of the first line `name: value` of a file; "" without such a line."""
    lines = (line.partition(":") for line in _text(file).splitlines())
    return next((v.strip() for k, _, v in lines if k.strip() == name), "")
