"""Rates of a recipe on this machine: a small invented dataset through it, in a store that goes away.

What it measures is kept as an eval's (`api.measured`), so that the plan of a store without runs knows
seconds.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from raypipe.api.run import evaluate
from raypipe.api.session import Session
from raypipe.cluster.capacity import is_here
from raypipe.core.errors import ConfError
from raypipe.synth import write

QUESTIONS, PAGES, PAGE_CHARS = 6, 6, 6000  # some 200 chunks: enough for a rate, half a minute on two cores


def calibrate(recipe: str | Path, session: Session) -> None:
    """Measures how fast each step of a recipe is here. Models are loaded, and those behind endpoints are
    called for a few questions. Raises ConfError for a cluster of other machines."""
    if not is_here(session.cluster_file()):
        raise ConfError(
            f"--calibrate: expected a cluster file for this machine alone, {session.cluster} is for others. "
            "An eval there measures them"
        )
    with tempfile.TemporaryDirectory(prefix="raypipe-calibrate-") as folder:
        world = Path(folder) / "world"
        write(world, QUESTIONS, pages=PAGES, seed=1, page_chars=PAGE_CHARS)
        store, out = Path(folder) / "store", Path(folder) / "run"
        evaluate(recipe, world, store, out, session=session, check=False)
