"""Scores of files and runs: of any system's predictions and rankings, judged again, or corrected by people's
labels; the judge measured by people, and the answers that people should label.

What a kind of file needs is imported by its call: a file of predictions needs no store, a ranking no judge.
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
from raypipe.metrics import ranking
from raypipe.metrics.crag import CragScore, Prediction, Rule, RuleScore
from raypipe.metrics.kinds import MeasureSlice, MeasureSummary, open_kind
from raypipe.runs.run_parts import JudgeLine, RunFolder


@dataclass(frozen=True, slots=True, repr=False)
class CragScoreResult(Result):
    """The score of predictions by a rule; one row."""

    by_rule: RuleScore
    judge: JudgeLine | None  # None: none was asked now
    trim: str  # how the predictions were cut; "": not
    people: int  # verdicts that people's labels changed
    normalized: Mapping[str, int]  # what was normalized on reading -> how often

    def rows(self) -> Sequence[CragScore]:
        return (self.by_rule.score,)


@dataclass(frozen=True, slots=True, repr=False)
class QaScoreResult(Result, rows="measures"):
    """Measures of answers to anyone's questions; a row for each."""

    lead: str  # the measure of the slices
    measures: tuple[MeasureSummary, ...]
    measure_slices: tuple[MeasureSlice, ...]
    normalized: Mapping[str, int]  # what was normalized on reading -> how often


@dataclass(frozen=True, slots=True, repr=False)
class MeansResult(Result):
    """Means of measures; a row for each."""

    means: Mapping[str, float | None]
    about: str  # how many questions they are of
    missing: int = 0  # questions without a prediction: they count 0
    unranked: tuple[str, ...] = ()  # judged queries without a ranking: they count 0
    unjudged: tuple[str, ...] = ()  # ranked queries without judgements: they count nowhere
    per_query: Mapping[str, Mapping[str, float]] | None = None  # None: not asked for

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [{"measure": name.strip(), "mean": mean} for name, mean in self.means.items()]


def score_crag(
    predictions: str | Path,
    rule: Rule | None = None,
    judge: str | None = None,
    trim: str | None = None,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    session: Session | None = None,
) -> CragScoreResult:
    """Scores CRAG predictions: the folder of an eval, or a file of any system.

    A line of the `.jsonl[.gz]` holds `query, answer, alternatives?, prediction, judge_response?`, and so
    does a run's predictions.jsonl. `rule` is official (the published evaluator's intent) or accuracy (the
    earlier contest rule); None: official, and of a folder its own. `judge` decides what the rule leaves open,
    in place of the replies that are there; `trim` names the tokenizer that cuts answers to 75 tokens first;
    `labels` is a file of people's verdicts, which outrank the judge's. `out` gets the predictions as they
    were scored. Raises ConfError, DataError, ModelMissing.
    """
    from raypipe.evaluation.judged_run import prediction_lines, read_labels

    if out is not None:
        require_file(out, "--out")
    said = None if labels is None else read_labels(Path(labels))
    run = opened(session or Session(), Path(predictions), rule, judge, trim)
    marks, people = run.marks(said)
    if out is not None:
        write_json_lines(Path(out), prediction_lines(run, marks))
    return CragScoreResult(marks.total(), run.called, run.trim, people, run.normalized)


def score_qa(predictions: str | Path) -> QaScoreResult:
    """Scores answers of any system to anyone's questions by exact match, token F1 and containment, with
    SQuAD's normalization; the best of several truths counts.

    A line of the `.jsonl[.gz]` holds `query, answer, alternatives?, prediction, labels?`; `predictions` may
    be the folder of an eval, too. Raises DataError.
    """
    from raypipe.metrics.files import score_qa_file

    file = Path(predictions)
    if file.is_dir():
        from raypipe.runs.record import read

        read(file)  # raises where its eval was killed
        file = RunFolder(file).predictions
    scores, normalized = score_qa_file(file, open_kind("qa"))
    return QaScoreResult(scores.lead, scores.measures, scores.slices, normalized)


def score_qasper(gold: str | Path, predictions: str | Path, text_evidence_only: bool = False) -> MeansResult:
    """Scores answers about papers as QASPER's evaluator does. `gold` is its JSON of papers; a line of
    `predictions` holds `question_id, predicted_answer, predicted_evidence`. `text_evidence_only`: figures and
    tables are taken out of the golds' evidence. Raises DataError."""
    from raypipe.metrics.overlap import score_files

    found = score_files(Path(gold), Path(predictions), text_evidence_only)
    kinds = {f"  {kind}": mean for kind, mean in found.by_kind.items()}
    means = {"Answer F1": found.answer_f1, **kinds, "Evidence F1": found.evidence_f1}
    about = f"{found.questions} questions; {found.missing} have no prediction and count 0"
    return MeansResult(means, about, found.missing)


def score_ranking(run: str | Path, qrels: str | Path, per_query: bool = False) -> MeansResult:
    """Scores a TREC run against judgements. `per_query`: every query's measures too. Raises DataError."""
    found = ranking.score(ranking.read_run(Path(run)), ranking.read_qrels(Path(qrels)))
    about = f"mean of {len(found.per_query)} judged queries; {len(found.unranked)} had no ranking and count 0"
    each = found.per_query if per_query else None
    return MeansResult(found.means, about, 0, tuple(found.unranked), tuple(found.unjudged), each)


TRIM_TOKENS = 75  # what CRAG's evaluator keeps of an answer


def opened(
    session: Session, path: Path, rule: Rule | None, judge_name: str | None, trim: str | None
) -> runs.JudgedRun:
    """A run's folder or a file of predictions, its answers cut to TRIM_TOKENS tokens of the tokenizer `trim`
    (None: not), and each put to a judge again (None: replies stay as they are). Raises ConfError, DataError
    and ModelMissing."""
    found = runs.judged_run(path, rule)
    if trim is not None:
        shorten, name = trimmer(session, trim)
        rows = list[Prediction]()
        for row in found.rows:
            short = None if row.prediction is None else shorten(row.prediction)
            same = short is None or short.strip() == (row.prediction or "").strip()
            # A judge's reply about a longer text is dropped with it.
            rows.append(row if same else replace(row, prediction=short, judge_response=None))
        found = replace(found, rows=tuple(rows), trim=name)
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
        with driving(store, f"judge {path.name}"):  # what the store's memo holds is not asked again
            bare = [replace(r, judge_response=None) for r in found.rows]
            replies, called = judge.ask(store, bare, found.texts, False)
            said = tuple(replace(r, judge_response=replies.get(r.question)) for r in bare)
            return replace(found, rows=said, judge=called.model, called=called)


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
