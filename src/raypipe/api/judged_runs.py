"""Runs as commands compare and score them: named, cut, judged again, or corrected by people's labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from raypipe.api.session import Session
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.evaluation.judged_run import JudgedRun, judged_run, rejudged, require_distinct, trimmed
from raypipe.evaluation.labels import PersonLabels
from raypipe.metrics.crag import Rule

if TYPE_CHECKING:
    from raypipe.store import Store

TRIM_TOKENS = 75  # what CRAG's evaluator keeps of an answer


@dataclass(frozen=True, slots=True)
class JudgingOptions:
    """What is done to a run before it is scored."""

    judge: str | None = None  # asks this judge about every answer again; None: replies stay as they are
    trim: str | None = None  # cuts answers to TRIM_TOKENS tokens of this tokenizer; None: not
    labels: PersonLabels | None = None  # people's verdicts, which outrank the judge's

    def some(self) -> bool:
        """Whether anything is done."""
        return self.judge is not None or self.trim is not None or self.labels is not None


def opened(session: Session, path: Path, rule: Rule | None, options: JudgingOptions) -> JudgedRun:
    """A run's folder or a file of predictions, cut and judged as the options say. Raises ConfError, DataError
    and ModelMissing."""
    found = judged_run(path, rule)
    if options.trim is not None:
        found = trimmed(found, *trimmer(session, options.trim))
    if options.judge is None:
        return found

    from raypipe.api.judges import open_judge
    from raypipe.pipeline.ingest_log import driving

    require_distinct(found)
    with open_judge(session, options.judge, found.rule) as (judge, _):
        assert judge is not None
        store = _judging_store(session, found)
        with driving(store, f"judge {path.name}"):
            return rejudged(found, judge, store)


def _judging_store(session: Session, run: JudgedRun) -> Store:
    """Where the judge's replies are cached: in the run's own store, and for files of predictions in one of
    their own under $RAYPIPE_HOME."""
    if run.manifest is not None:
        return session.store(run.manifest.store)

    from raypipe.store import Store

    return Store.create(str(session.settings.stores / "judged"))


def trimmer(session: Session, tokenizer: str) -> tuple[Callable[[str], str], str]:
    """Cuts a text to what CRAG's evaluator keeps; and the cut's name, which has the tokenizer's identity.

    Raises ConfError for an unknown entry, ModelMissing where its files are not here: no other tokenizer takes
    its place.
    """
    from raypipe.models import load
    from raypipe.text.pack import cut

    catalog = session.catalog()
    if (entry := catalog.entries.get(tokenizer)) is None:
        raise ConfError(
            f"--trim {tokenizer}: {catalog.file} has no such model; "
            f"{did_you_mean(tokenizer, catalog.entries)}"
        )
    if entry.kind != "tokenizer":
        raise ConfError(f"--trim {tokenizer}: expected a tokenizer, found a model of kind {entry.kind}")
    exact = replace(catalog, entries={**catalog.entries, tokenizer: replace(entry, fallback="")})
    model = exact.model(tokenizer)
    load.present(model)
    tokenize = load.open_tokenizer(model)
    name = f"{TRIM_TOKENS} tokens of {tokenizer} ({model.weights})"
    return lambda text: cut(text, TRIM_TOKENS, tokenize), name
