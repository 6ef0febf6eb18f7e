"""Training labels: a step answers a training split, a judge compares with golds, rules give the labels."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.api.paths import Data, deliver, run_folder, several
from raypipe.api.pipelines import offline_pipeline
from raypipe.api.plans import PlanResult, plan
from raypipe.api.results import Result, outside_loop
from raypipe.api.run import EvalResult, evaluate
from raypipe.api.served_models import generator_of
from raypipe.api.session import Named, Place, Session
from raypipe.contrib.crag.api.graphs import calls_parser
from raypipe.contrib.crag.language.program import Bad
from raypipe.contrib.finetune import label_files, training_labels
from raypipe.contrib.finetune.label_files import JudgedAnswer, Label
from raypipe.contrib.finetune.labelling import CHECK, CONTEXT, Labelling, labelling
from raypipe.contrib.finetune.training_questions import TrainingQuestions, training_questions
from raypipe.contrib.finetune.truth_steps import WORDS, Words
from raypipe.core.digests import row_digest
from raypipe.core.errors import ConfError, DataError
from raypipe.core.protocols import Model
from raypipe.core.textfile import TextLine, require_file, require_writable
from raypipe.evaluation.golds import questions_of
from raypipe.evaluation.options import EvalOptions
from raypipe.recipes.resolve import prompt_file


@dataclass(frozen=True, slots=True)
class LabelOptions(EvalOptions):
    """Options of `make_labels`: those of the eval that answers and judges, and the fields below.

    `judge` names the judging model. None: the step's own model. "words": no model, the words of the truth
    decide."""

    step: str | None = None  # name of the step's reply; None: the last step that answers in words
    where: Sequence[str] = ()  # clauses LABEL=V1,V2 that select questions; (): all
    against: Sequence[str | Path] = ()  # evaluation questions, as files or LABEL=V1,V2
    held_out: float = 0.1  # share of questions that decide when training stops; no source gives a value
    idk_share: float | None = None  # share of train rows that say "i don't know"; None: unchanged
    review: str | Path | None = None  # file to write for a person's corrections
    reviewed: str | Path | None = None  # such a file; its lines marked "use": true outrank the rules


CAPS = ("max_calls", "max_usd", "max_hours")
OF_RUN = (*CAPS, "labels", "only_new", "fresh", "retry_faults", "refresh", "changes", "on_plan", "began")
"""Options that the eval takes as they are."""


@dataclass(frozen=True, slots=True, repr=False)
class LabelsResult(Result, rows="labels", record="found"):
    """Training labels, and facts about them. Its rows are the labels without their chats."""

    folder: Path
    labels: tuple[Label, ...]
    found: Mapping[str, Any]  # output of --json
    eval: EvalResult  # run that answered and judged


@outside_loop
def make_labels(
    recipe: Named,
    data: Data = (),
    store: Place = None,
    out: str | Path | None = None,
    session: Session | None = None,
    **options: Any,
) -> LabelsResult:
    """Makes training labels for one step of a recipe by the rules of the db3 paper.

    The step answers the questions of `data`, or all stored questions. `options` are fields of
    `LabelOptions`. Labels of calls come only from a person's file (`reviewed`). Replies are cached, so an
    equal second call sends no chat. `out`: folder for labels.parquet and labels.json; None: a new folder
    under $RAYPIPE_HOME/runs.

    Raises ConfError, ModelMissing and the errors of `evaluate`. Raises DataError if a question is `against`,
    too, or nearly so, and if all labels are of one kind.
    """
    session, how = session or Session(), LabelOptions(**options)
    made, asked, given, drafts = _prepare(session, recipe, data, store, out, how)
    folder = run_folder(out, session.settings, asked.store.uri, f"labels/{made.base.name}-{made.into}")
    of_run = {k: v for k, v in options.items() if k in OF_RUN}
    run = evaluate(made.recipe, (), asked.store, folder, session, **of_run, only=list(asked.ids), check=False)
    pipeline = offline_pipeline(session, asked.store, made.recipe)
    questions = list(questions_of(pipeline, asked.ids, None))
    judged = list(training_labels.judged_answers(pipeline, questions, asked.golds, made))
    if drafts is not None:
        label_files.write_review(drafts, judged, made.into)
    labels = training_labels.labels_from(judged, given, how.held_out, how.idk_share)
    named, model = "", made.step.model
    if labels or made.judged:
        training_labels.require_kinds(labels, made.judged, judged)
        about = {
            "step": made.into,
            "recipe_name": made.base.name,
            "model": model.name,
            "model_weights": model.weights,
            "judge": made.judge,
            "labelled_by": made.recipe.digest(),
            "store": asked.store.uri,
            "where": " ".join(how.where),
        }
        texts = {id: row_digest(text) for id, text in asked.texts.items()}
        data_named = training_labels.data_digest(questions, asked.golds)
        named = label_files.write_labels(folder, labels, made.base.digest(), data_named, about, texts)
    found = _found(made, folder, labels, judged, given, asked, run, named, drafts)
    deliver(out, folder)
    return LabelsResult(folder, labels, found, run)


@outside_loop
def plan_labels(
    recipe: Named,
    data: Data = (),
    store: Place = None,
    out: str | Path | None = None,
    session: Session | None = None,
    **options: Any,
) -> PlanResult:
    """Plans the calls that `make_labels` may make, without making them. Takes the same arguments, and raises
    the errors that `make_labels` raises before its first call."""
    session, how = session or Session(), LabelOptions(**options)
    with tempfile.TemporaryDirectory(prefix="raypipe-plan-") as scratch:
        made, asked, _, _ = _prepare(session, recipe, data, store, out, how, Path(scratch))
        only: dict[str, Any] = {"fields": how.fields, "only": asked.ids}
        return plan(made.recipe, data, asked.store, how.format, session=session, **only)


def _prepare(
    session: Session,
    recipe: Named,
    data: Data,
    store: Place,
    out: str | Path | None,
    how: LabelOptions,
    scratch: Path | None = None,
) -> tuple[Labelling, TrainingQuestions, dict[str, str], Path | None]:
    """Checks all names, then reads files and questions. Returns the labelling recipe, the questions, a
    person's labels (question id -> label), and the review file. `scratch`: see `training_questions`."""
    label_files.require_share("--held-out", how.held_out)
    label_files.require_share("--idk-share", how.idk_share)
    if out is not None:
        require_writable(run_folder(out, session.settings, "", ""), "--out")
    drafts, corrections = (
        None if file is None else Path(session.settings.place(str(file), name))
        for file, name in ((how.review, "--review"), (how.reviewed, "--import"))
    )
    if drafts is not None:
        require_file(drafts, "--review")
        if drafts.exists():
            raise ConfError(
                f"--review {drafts}: expected no file there, since it may hold corrections. Name another"
            )
    corrected = None if corrections is None else label_files.read_review(corrections)
    given = several(data)
    base = session.over(store, bool(given)).recipe(recipe, given)
    judge: Model | Words | None = None
    if how.judge is not None:
        judge = WORDS if how.judge == WORDS else generator_of(session, "--judge", how.judge)
    check, context = (prompt_file(session.settings.conf, name) for name in (CHECK, CONTEXT))
    named = labelling(base, how.step, judge, check, context, {})
    if not named.judged and drafts is None and corrected is None:
        raise ConfError(
            f"--step {named.into}: labels of calls are drafts until a person has looked at them. Write them "
            "with --review FILE, correct them, and name the file with --import"
        )
    asked = training_questions(session, given, store, how.where, how.against, how, scratch)
    golds = {id: asked.golds[id].answers for id in asked.ids if id in asked.golds}
    truths = {id: answers for id, answers in golds.items() if answers}
    made = labelling(base, how.step, judge, check, context, truths)
    if made.judged and not truths:
        raise DataError(
            f"{asked.store.uri}: expected training questions with answers, found {len(asked.ids)} without"
        )
    splits = training_labels.splits_of({id: asked.texts[id] for id in asked.ids}, how.held_out)
    if (made.judged or corrected) and "train" not in splits.values():
        raise DataError(
            f"--held-out {how.held_out:g}: expected questions to train on, found all "
            f"{len(asked.ids)} held out. Lower it, or label more questions"
        )
    return made, asked, _reviewed(session, made, corrected or {}, asked), drafts


def _reviewed(
    session: Session, made: Labelling, corrected: Mapping[str, tuple[str, TextLine]], asked: TrainingQuestions
) -> dict[str, str]:
    """Returns a person's labels by question id. Raises DataError for an unknown id and for invalid calls."""
    parse = calls_parser(session)[1] if corrected and not made.judged else None
    known = set(asked.ids)
    for id, (label, line) in corrected.items():
        if id not in known:
            raise line.error("the id of a training question", id)
        if parse is not None and (bad := [x for x in parse(label).lines if isinstance(x, Bad)]):
            raise line.error(f"calls that can be parsed ({bad[0].why})", label)
    return {id: label for id, (label, _) in corrected.items()}


def _found(
    made: Labelling,
    folder: Path,
    labels: Sequence[Label],
    judged: Sequence[JudgedAnswer],
    given: Mapping[str, str],
    asked: TrainingQuestions,
    run: EvalResult,
    named: str,
    review: str | Path | None,
) -> dict[str, Any]:
    steps, split = run.run.steps, label_files.counts(labels)["split"]
    planned = [s.planned for s in steps]
    paths = training_labels.paths_of(judged, given)
    return dict(
        out=folder,
        digest=named,
        recipe=made.base.name,
        step=made.into,
        model=made.step.model.name,
        judge=made.judge,
        questions=len(asked.ids),
        labels=len(labels),
        split={"train": split.get("train", 0), "held_out": split.get("held-out", 0)},
        rules=sorted({x.rule for x in labels}),
        mix=training_labels.mix_of(labels),
        paths=[p for p in paths if made.judged or p.rule in ("", "imported")],
        examples=training_labels.examples_of(judged, labels),
        evaluated=asked.evaluated,
        planned=None if None in planned else sum(p or 0 for p in planned),
        computed=sum(s.computed for s in steps),
        cached=sum(s.cached for s in steps),
        review=None if review is None else str(review),
    )
