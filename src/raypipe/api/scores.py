"""Scores of predictions and rankings of any system. `check_judge` measures a judge by people's labels, and
`pick_to_label` picks answers for people to label.

Modules are imported by the functions that need them: predictions need no store, a ranking no judge.
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
from raypipe.metrics.kinds import MeasureSlice, MeasureSummary
from raypipe.metrics.verdict_rules import CragScore, Prediction, Rule, RuleScore
from raypipe.runs.run_parts import JudgeLine, RunFolder


@dataclass(frozen=True, slots=True, repr=False)
class CragScoreResult(Result):
    """Score of predictions by a rule. The score is the only row."""

    by_rule: RuleScore
    judge: JudgeLine | None  # None: no judge was called
    trim: str  # the cut of the predictions; "": none
    people: int  # verdicts that people's labels changed
    normalized: Mapping[str, int]  # kind of correction made on reading -> count

    def rows(self) -> Sequence[CragScore]:
        return (self.by_rule.score,)


@dataclass(frozen=True, slots=True, repr=False)
class QaScoreResult(Result, rows="measures"):
    """Measures of answers that are compared with true answers. Each measure is a row."""

    lead: str  # the measure that slices are measured by
    measures: tuple[MeasureSummary, ...]
    measure_slices: tuple[MeasureSlice, ...]
    normalized: Mapping[str, int]  # kind of correction made on reading -> count


@dataclass(frozen=True, slots=True, repr=False)
class MeansResult(Result):
    """Means of measures. Each measure is a row."""

    means: Mapping[str, float | None]
    about: str  # the number of questions, in a sentence
    missing: int = 0  # questions without a prediction, which count 0
    unranked: tuple[str, ...] = ()  # judged queries without a ranking, which count 0
    unjudged: tuple[str, ...] = ()  # ranked queries without judgements, which do not count
    per_query: Mapping[str, Mapping[str, float]] | None = None  # None: not requested

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
    """Scores CRAG predictions in the folder of an eval, or in a file of any system.

    Each line of a `.jsonl[.gz]` file holds `query, answer, alternatives?, prediction, judge_response?`.
    `rule` is official (the published evaluator's intent), accuracy (the earlier contest rule), words (needs
    no judge) or MODULE:NAME. None means the folder's own rule, and `official` for a file. `judge` is a model
    that judges the answers that the rule leaves open; None means that the stored replies of a judge count.
    `trim` is a tokenizer, by which answers are first cut to 75 tokens; an answer that is cut loses its stored
    reply. `labels` is a file of people's verdicts, which count more than the judge's. `out` is a file for the
    scored predictions. Raises ConfError, DataError and ModelMissing.
    """
    if out is not None:
        require_file(out, "--out")
    said = None if labels is None else runs.read_labels(Path(labels))
    run = opened(session or Session(), predictions, rule, judge, trim)
    if not run.rows:
        raise DataError(f"{predictions}: expected lines with an answer to score against, found none")
    marks = run.labelled(said).marks()
    if out is not None:
        write_json_lines(Path(out), runs.prediction_lines(run, marks))
    return CragScoreResult(marks.total(), run.called, run.trim, marks.people, run.normalized)


def score_qa(predictions: str | Path) -> QaScoreResult:
    """Scores answers of any system by exact match, token F1 and containment.

    Texts are normalized as in SQuAD. If a question has several true answers, the best match counts.
    `predictions` is the folder of an eval, or a `.jsonl[.gz]` file with lines of `query, answer,
    alternatives?, prediction, labels?`. Raises DataError for unreadable lines, and for an unfinished eval.
    """
    from raypipe.metrics.prediction_files import score_qa_file

    file = Session().local_run(predictions)
    if file.is_dir():
        from raypipe.runs.record import read

        read(file)  # raises if its eval was killed
        file = RunFolder(file).predictions
    scores, normalized = score_qa_file(file)
    return QaScoreResult(scores.lead, scores.measures, scores.slices, normalized)


def score_qasper(gold: str | Path, predictions: str | Path, text_evidence_only: bool = False) -> MeansResult:
    """Scores answers about papers as QASPER's evaluator does. `gold` is QASPER's JSON of papers. Each line of
    `predictions` holds `question_id, predicted_answer, predicted_evidence`. `text_evidence_only` drops
    figures and tables from the golds' evidence. Raises DataError for unreadable files."""
    from raypipe.metrics.overlap import score_files

    found = score_files(Path(gold), Path(predictions), text_evidence_only)
    kinds = {f"  {kind}": mean for kind, mean in found.by_kind.items()}
    means = {"Answer F1": found.answer_f1, **kinds, "Evidence F1": found.evidence_f1}
    about = f"{found.questions} questions; {found.missing} have no prediction and count 0"
    return MeansResult(means, about, found.missing)


def score_ranking(run: str | Path, qrels: str | Path, per_query: bool = False) -> MeansResult:
    """Scores a TREC run by judgements, with `per_query` also each query. Raises DataError for bad files."""
    found = ranking.score(ranking.read_run(Path(run)), ranking.read_qrels(Path(qrels)))
    about = f"mean of {len(found.per_query)} judged queries; {len(found.unranked)} had no ranking and count 0"
    each = found.per_query if per_query else None
    return MeansResult(found.means, about, 0, tuple(found.unranked), tuple(found.unjudged), each)


TRIM_TOKENS = 75  # length to which CRAG's evaluator cuts an answer


def opened(
    session: Session, run: str | Path, rule: Rule | None, judge_name: str | None, trim: str | None
) -> runs.JudgedRun:
    """Reads a run's folder or a file of predictions for scoring. `trim` is a tokenizer, by which answers are
    cut to TRIM_TOKENS tokens; None means no cut. `judge_name` is a judge that is called for the answers that
    the rule leaves open; None: stored replies count. Raises ConfError, DataError and ModelMissing."""
    found = replace(runs.judged_run(session.local_run(run), rule), name=str(run))
    if trim is not None:
        shorten, name = trimmer(session, trim)
        rows = list[Prediction]()
        for row in found.rows:
            short = None if row.prediction is None else shorten(row.prediction)
            same = short is None or short.strip() == (row.prediction or "").strip()
            # The judge replied about the longer text, so its reply is dropped.
            rows.append(row if same else replace(row, prediction=short, judge_response=None))
        found = replace(found, rows=tuple(rows), trim=name)
    if judge_name is None:
        return found

    from raypipe.api.served_models import open_judge
    from raypipe.runs.pipeline.ingest_log import driving
    from raypipe.store import Store

    runs.require_distinct(found)
    with open_judge(session, judge_name, found.rule) as (judge, _):
        assert judge is not None
        # Replies are cached in the run's own store; for a file of predictions, under $RAYPIPE_HOME.
        own = str(session.settings.stores / "judged")
        store = Store.create(own) if found.record is None else session.store(found.record.store)
        with driving(store, f"judge {Path(run).name}"):  # replies in the store's memo are reused
            bare = [replace(r, judge_response=None) for r in found.rows]
            replies, called = judge.ask(store, bare, found.texts, False)
            said = tuple(replace(r, judge_response=replies.get(r.question)) for r in bare)
            return replace(found, rows=said, judge=called.model, called=called)


def trimmer(session: Session, tokenizer: str) -> tuple[Callable[[str], str], str]:
    """Returns a function that cuts a text as CRAG's evaluator does, and the name of this cut for reports.
    Raises ConfError if the models file has no tokenizer of this name. Raises ModelMissing if the tokenizer's
    files are missing, even if its entry names a fallback."""
    from raypipe.models import load
    from raypipe.text.context import cut

    catalog = session.catalog()
    if (entry := catalog.entries.get(tokenizer)) is None:
        hint = did_you_mean(tokenizer, catalog.of_kind("tokenizer"))
        raise ConfError(f"--trim {tokenizer}: {catalog.file} has no such model; {hint}")
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
    """Agreement of a judge with people. The first row has all answers, each further row one slice."""

    found: JudgeCheck

    def rows(self) -> Sequence[SliceAgreement]:
        whole = [SliceAgreement("", "", self.found.found)] if self.found.found else []
        return [*whole, *self.found.slices]


@dataclass(frozen=True, slots=True, repr=False)
class PickResult(Result, rows="lines"):
    """Answers for people to label. Each answer is a row."""

    file: str  # "": not written
    random: int  # answers drawn at random
    chosen: int  # answers on which two measures contradict each other
    lines: tuple[Mapping[str, Any], ...]


def check_judge(
    labels: str | Path, run: str | Path | None = None, rule: Rule | None = None
) -> JudgeCheckResult:
    """Measures how often a run's judge agrees with people, and corrects the run's score for its errors.

    The result has the agreement and Cohen's kappa, also by slice. `run` is the folder of an eval, or a file
    of predictions with the judge's replies; None means the folder of the file `labels`. `rule` None means the
    folder's own rule, and `official` for a file; replies in a folder count only under its own rule. Raises
    ConfError if the folder of `labels` is no run, and DataError for bad files or labels of another run.
    """
    place = Path(labels).absolute().parent if run is None else Session().local_run(run)
    if run is None and not RunFolder(place).results.exists():
        raise ConfError(f"judge check: {place} is no run's folder; name the run of these labels with --run")
    found = runs.judged_run(place, rule)
    runs.require_distinct(found)
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
    """Writes a file of judged answers for people to label.

    Up to `at_random` answers are drawn at random with `seed`. Up to `disagreements` more are answers for
    which the judge's verdict is furthest from the word overlap with the true answer. An answer with a label
    in the file `labels` is skipped. Raises DataError if `out` exists, or if `run` is unreadable or has no
    judged answer. Raises ConfError if both numbers are 0."""
    require_file(out, "--out")
    if Path(out).exists():
        raise DataError(f"{out}: expected no file there, since it may hold labels. Name another --out")
    found = runs.judged_run(Session().local_run(run), rule)
    runs.require_distinct(found)
    known = None if labels is None else runs.read_labels(Path(labels))
    lines = checking.pick(found, disagreements, at_random, seed, known)
    write_json_lines(Path(out), lines)
    picked = [line["picked"] for line in lines]
    return PickResult(str(out), picked.count("random"), picked.count("chosen"), tuple(lines))
