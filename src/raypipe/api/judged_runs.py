"""Runs as commands compare and score them: named, cut, judged again, or corrected by people's labels; the
judge measured by people, and the answers that people should label.

What opens a store or a judge is imported where one is named: files of predictions need neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raypipe.api.results import Result
from raypipe.api.session import Session
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError, DataError
from raypipe.core.textfile import require_file, write_json_lines
from raypipe.evaluation import judge_check as checking
from raypipe.evaluation import judged_run as runs
from raypipe.evaluation.judge_check import JudgeCheck, SliceAgreement
from raypipe.metrics.crag import Rule
from raypipe.runs.run_parts import RunFolder

TRIM_TOKENS = 75  # what CRAG's evaluator keeps of an answer


def opened(
    session: Session, path: Path, rule: Rule | None, judge_name: str | None, trim: str | None
) -> runs.JudgedRun:
    """A run's folder or a file of predictions, its answers cut to TRIM_TOKENS tokens of the tokenizer `trim`
    (None: not), and each put to a judge again (None: replies stay as they are). Raises ConfError, DataError
    and ModelMissing."""
    found = runs.judged_run(path, rule)
    if trim is not None:
        found = runs.trimmed(found, *trimmer(session, trim))
    if judge_name is None:
        return found

    from raypipe.api.served import open_judge
    from raypipe.runs.pipeline.ingest_log import driving
    from raypipe.store import Store

    runs.require_distinct(found)
    with open_judge(session, judge_name, found.rule) as (judge, _):
        assert judge is not None
        # Replies are cached in the run's own store, of files of predictions in one under $RAYPIPE_HOME.
        own = str(session.settings.stores / "judged")
        store = Store.create(own) if found.record is None else session.store(found.record.store)
        with driving(store, f"judge {path.name}"):
            return runs.rejudged(found, judge, store)


def trimmer(session: Session, tokenizer: str) -> tuple[Callable[[str], str], str]:
    """Cuts a text to what CRAG's evaluator keeps; and the cut's name, which has the tokenizer's identity.

    Raises ConfError for an unknown entry, ModelMissing where its files are not here: no other tokenizer takes
    its place.
    """
    from raypipe.models import load
    from raypipe.text.context import cut

    catalog = session.catalog()
    if (entry := catalog.entries.get(tokenizer)) is None:
        raise ConfError(
            f"--trim {tokenizer}: {catalog.file} has no such model; "
            f"{did_you_mean(tokenizer, catalog.of_kind('tokenizer'))}"
        )
    if entry.kind != "tokenizer":
        raise ConfError(f"--trim {tokenizer}: expected a tokenizer, found a model of kind {entry.kind}")
    exact = replace(catalog, entries={**catalog.entries, tokenizer: replace(entry, fallback="")})
    model = exact.model(tokenizer)
    load.present(model)
    tokenize = load.open_tokenizer(model)
    name = f"{TRIM_TOKENS} tokens of {tokenizer} ({model.weights})"
    return lambda text: cut(text, TRIM_TOKENS, tokenize), name


@dataclass(frozen=True, slots=True, repr=False)
class JudgeCheckResult(Result, record="found"):
    """A judge against people; a row for all answers, and one for each slice."""

    found: JudgeCheck

    def rows(self) -> Sequence[SliceAgreement]:
        whole = [SliceAgreement("", "", self.found.found)] if self.found.found else []
        return [*whole, *self.found.slices]


@dataclass(frozen=True, slots=True, repr=False)
class PickResult(Result, rows="lines"):
    """Answers for people to label; a row for each."""

    file: str  # "": not written
    random: int  # drawn at random
    chosen: int  # of which two measures say the opposite
    lines: tuple[Mapping[str, Any], ...]


def check_judge(
    labels: str | Path, run: str | Path | None = None, rule: Rule | None = None
) -> JudgeCheckResult:
    """Measures a run's judge by people's labels: agreement, Cohen's kappa, by slice, and the score with the
    judge's errors taken out.

    `labels` is a file of labels, `run` the folder of an eval or a file of predictions with the judge's
    replies; None: the folder that the labels lie in. `rule`: by which a file is scored. Raises ConfError,
    DataError.
    """
    place = Path(labels).absolute().parent if run is None else Path(run)
    if run is None and not RunFolder(place).results.exists():
        raise ConfError(f"judge check: {place} is no run's folder; name the run of these labels with --run")
    found = runs.judged_run(place, rule)
    runs.require_distinct(found)
    runs.require_readable(found)
    return JudgeCheckResult(checking.check(found, runs.read_labels(Path(labels))))


def pick_to_label(
    run: str | Path,
    out: str | Path,
    disagreements: int = 0,
    at_random: int = 0,
    seed: int = 0,
    labels: str | Path | None = None,
    rule: Rule | None = None,
) -> PickResult:
    """Writes answers for people to label: drawn at random, and those of which the judge and the words of the
    truth say the opposite. Answers in the file `labels` are left out. Raises ConfError, DataError.
    """
    require_file(out, "--out")
    if Path(out).exists():
        raise DataError(f"{out}: expected no file there, since it may hold labels. Name another --out")
    found = runs.judged_run(Path(run), rule)
    runs.require_distinct(found)
    runs.require_readable(found)
    known = None if labels is None else runs.read_labels(Path(labels))
    lines = checking.pick(found, disagreements, at_random, seed, known)
    write_json_lines(Path(out), lines)
    picked = [line["picked"] for line in lines]
    return PickResult(str(out), picked.count("random"), picked.count("chosen"), tuple(lines))
