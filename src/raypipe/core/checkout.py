"""Which commit the code is of, and which versions it runs with."""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
WRITTEN = PACKAGE / "COMMIT"  # a wheel has this file; hatch_build.py writes it


def commit() -> str:
    """The commit that the package was built from, or that of its checkout, with -dirty where files differ; ""
    where neither is known."""
    if WRITTEN.is_file():
        return WRITTEN.read_text(encoding="ascii").strip()
    return commit_of(PACKAGE)


def commit_of(folder: Path) -> str:
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


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Package -> version, of those that are installed."""
    found = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
