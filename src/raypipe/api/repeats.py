"""One eval several times over: how much of a difference is the engine's noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from raypipe.api.paths import Data, run_folder, several
from raypipe.api.results import Result, as_json, outside_loop, plain
from raypipe.api.run import EvalOptions, evaluate
from raypipe.api.session import Named, Place, Session
from raypipe.core.errors import ConfError
from raypipe.evaluation.repeats import Repeats, repeats
from raypipe.evaluation.scored_run import scored_run
from raypipe.metrics.textfile import write_json
from raypipe.readers.object_store import is_remote


@dataclass(frozen=True, slots=True)
class RepeatsResult(Result):
    """Several runs of one recipe; a row for each question: mean and spread of its values 1, 0, -1."""

    SCHEMA = "question mean:float64 spread:float64"
    folder: Path
    found: Repeats

    @property
    def title(self) -> str:
        return f"{len(self.found.runs)} runs, {self.found.moved} verdicts moved"

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return plain(self.found.questions)  # type: ignore[no-any-return]

    def to_json(self) -> dict[str, Any]:
        return as_json(folder=self.folder, **plain(self.found))


@outside_loop
def evaluate_repeatedly(
    recipe: Named, times: int, data: Data = (), store: Place = None, out: str | Path | None = None,
    **options: Unpack[EvalOptions],
) -> RepeatsResult:  # fmt: skip
    """Evaluates a recipe `times` times, from the second on with language models asked again, and says how far
    the score and each question's verdict move.

    Takes what `evaluate` takes; `out` gets a folder `repeat-N` for each run, and repeats.json. Raises
    ConfError for fewer than two times and for a folder of an object store, and what `evaluate` raises.
    """
    if times < 2:
        raise ConfError(f"--repeats: expected 2 or more, found {times}")
    if out is not None and is_remote(str(out)):
        raise ConfError(f"--repeats: expected a folder of this machine as --out, found {out}")
    session = options.get("session") or Session()
    given = several(data)
    found = session.recipe(recipe, given)
    filled = session.store_to_fill(store) if given else session.store(store)
    folder = run_folder(out, session.settings, filled.uri, found.name)
    asks = any(m.kind == "generator" for m in found.models())  # nothing else answers otherwise to the same
    folders = [folder / f"repeat-{n}" for n in range(1, times + 1)]
    for n, place in enumerate(folders):
        options["fresh"] = options.get("fresh", False) or (asks and n > 0)
        evaluate(found, given, filled, place, **options)
    result = RepeatsResult(folder, repeats([scored_run(place, "official") for place in folders]))
    write_json(folder / "repeats.json", result.to_json())
    return result
