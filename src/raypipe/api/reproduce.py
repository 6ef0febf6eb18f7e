"""Comparison of runs with the expected numbers in conf/reproduce.yaml. The file also lists numbers that
papers state, with the data and the command that would measure them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from raypipe.api.questions import rank
from raypipe.api.results import Result
from raypipe.api.run import evaluate
from raypipe.api.scores import score_crag
from raypipe.api.session import Place, Session
from raypipe.core import config
from raypipe.core.config import Where, did_you_mean
from raypipe.core.errors import ConfError, DataError, RaypipeError
from raypipe.metrics.ranking import read_qrels, score
from raypipe.metrics.verdict_rules import Rule
from raypipe.readers.beir import write_pool

Verdict: TypeAlias = Literal["OK", "OKish", "FAIL"]
FILE = "reproduce.yaml"
DEPTH = 100  # documents of a ranking: the depth of the deepest measure


class NotReproduced(RaypipeError):
    """Error of a number that differs too much from its expected value."""

    exit_code = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedNumber:
    """Expected number of a run."""

    measure: str
    value: float
    ok: float  # difference up to which it is OK
    okish: float  # difference up to which it is OKish; a larger one: FAIL
    by: str = ""  # for a ranking, the score that ranks; for files, the file's name without its ending

    def checked(self, found: float | None) -> CheckedNumber:
        """Rates the number `found` by its distance from the expected one: OK, OKish or FAIL. None is FAIL."""
        apart = None if found is None else found - self.value
        off = float("nan") if apart is None else abs(apart)
        verdict: Verdict = "OK" if off <= self.ok else "OKish" if off <= self.okish else "FAIL"
        return CheckedNumber(self.measure, self.by, self.value, found, apart, verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A run with expected numbers."""

    about: str
    how: Literal["rank", "pool", "eval", "score"]
    """rank: BEIR's files, ranked by each score. pool: a ranking of the gold passages of all questions in one
    file. eval: the measures of a recipe. score: files of predictions."""
    data: str  # description of --data and its origin
    minutes: float  # duration on two cores
    expected: tuple[ExpectedNumber, ...]
    recipe: str = ""  # for rank, pool and eval
    questions: int = 0  # for pool: the first N of the file; all its passages are searched
    rule: Rule | None = None  # for score


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedNumber:
    """Number that a paper states, with the data and the command that would measure it."""

    recipe: str
    states: str  # the paper's statement
    theirs: str  # the paper's model; `raypipe models RECIPE` lists the recipe's models
    data: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Reproductions(Result, rows="published"):
    """Content of conf/reproduce.yaml. Each published number is a row."""

    runs: Mapping[str, Reproduction]
    published: tuple[PublishedNumber, ...]


@dataclass(frozen=True, slots=True)
class CheckedNumber:
    """An expected number next to the number found."""

    measure: str
    by: str  # for a ranking, the score that ranks; for files, the file's name
    expected: float
    found: float | None  # None: the run has no such number
    difference: float | None
    verdict: Verdict


def worst(numbers: Iterable[CheckedNumber]) -> Verdict:
    """Returns the worst verdict of some numbers; OK if there are none."""
    return max((n.verdict for n in numbers), key=get_args(Verdict).index, default="OK")


@dataclass(frozen=True, slots=True, repr=False)
class ReproduceResult(Result, rows="numbers"):
    """Comparison of a run with its expected numbers. Each number is a row."""

    name: str
    about: str
    verdict: Verdict  # the worst verdict of the numbers
    numbers: tuple[CheckedNumber, ...]

    def check(self) -> None:
        """Raises NotReproduced if a number differs by more than it may."""
        if bad := [n for n in self.numbers if n.verdict == "FAIL"]:
            first = bad[0]
            found = "none" if first.found is None else f"{first.found:g}"
            number = f"{first.measure}{f' by {first.by}' if first.by else ''}"
            many = f"{self.name}: {len(bad)} of {len(self.numbers)} numbers differ by more than they may"
            raise NotReproduced(f"{many}, first {number}: expected {first.expected:g}, found {found}")


def reproductions(session: Session | None = None, name: str | None = None) -> Reproductions:
    """Reads conf/reproduce.yaml. A `name` selects one run, without published numbers. Raises ConfError for an
    invalid file, and for an unknown name."""
    path = (session or Session()).settings.conf.file(FILE)
    found = config.build(Reproductions, config.read_yaml(path), Where(str(path)))
    if name is None:
        return found
    if name not in found.runs:
        raise ConfError(f"reproduce {name}: no such run; {did_you_mean(name, found.runs)}")
    return Reproductions(runs={name: found.runs[name]}, published=())


def reproduce(
    name: str, data: str | Path, store: Place = None, check: bool = True, session: Session | None = None
) -> ReproduceResult:
    """Runs the entry `name` of conf/reproduce.yaml over `data`, and rates each number OK, OKish or FAIL.

    `store` is the store of an eval; None means the default store. A ranking gets a store that is named by a
    digest of its files. With `check`, raises NotReproduced if a number is rated FAIL. Raises ConfError for an
    unknown name, DataError for missing data, and the errors of the run.
    """
    session = session or Session()
    run, folder = reproductions(session, name).runs[name], Path(data)
    if not folder.exists():
        raise DataError(f"--data {folder}: expected {run.data}; found nothing there")
    found = dict[str, Mapping[str, float | None]]()  # `by` of an expected number -> measure -> number
    if run.how == "eval":
        measured = evaluate(run.recipe, folder, store, session=session).run.measures
        means = {m.measure: m.mean for m in measured}
        found = {e.by: means for e in run.expected}
    elif run.how == "score":
        for by in dict.fromkeys(e.by for e in run.expected):
            file = _file(folder, f"{by}.jsonl")
            found[by] = asdict(score_crag(file, run.rule, session=session).by_rule.score)
    else:
        found = _ranked(run, folder, session)
    numbers = tuple(e.checked(found[e.by].get(e.measure)) for e in run.expected)
    result = ReproduceResult(name, run.about, worst(numbers), numbers)
    if check:
        result.check()
    return result


def _ranked(run: Reproduction, folder: Path, session: Session) -> dict[str, Mapping[str, float | None]]:
    """Ranks the documents in `folder` by each score. Maps a score to the measures of the ranking."""
    if run.how == "pool":
        with folder.open("rb") as stream:
            named = hashlib.file_digest(stream, "blake2b").hexdigest()[:12]
        pool = session.settings.home / "reproduce" / f"{named}-{run.questions}"
        write_pool(folder, pool, run.questions)
        folder = pool
    corpus, queries, qrels = (_file(folder, n) for n in ("corpus.jsonl", "queries.jsonl", "qrels.trec"))
    judged, means = read_qrels(qrels), dict[str, Mapping[str, float | None]]()
    for by in dict.fromkeys(e.by for e in run.expected):  # the first ranking computes, others read results
        ranked = rank(run.recipe, corpus, queries, by=by, top=DEPTH, session=session)
        means[by] = score(ranked.run, judged).means
    return means


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"--data {folder}: expected {name} or {name}.gz in it, found neither")
