"""Training labels: a step answers a training split, a judge compares with golds, rules give the labels."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raypipe.api.paths import Data, deliver, run_folder, several
from raypipe.api.pipelines import offline_pipeline
from raypipe.api.plans import PlanResult, plan
from raypipe.api.results import Result, outside_loop
from raypipe.api.run import EvalResult, evaluate
from raypipe.api.served import generator_of
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

HELD_OUT = 0.1  # share of questions that decide when training stops; no source gives a value


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
    step: str | None = None,
    where: Sequence[str] = (),
    against: Sequence[str | Path] = (),
    held_out: float = HELD_OUT,
    idk_share: float | None = None,
    review: str | Path | None = None,
    reviewed: str | Path | None = None,
    session: Session | None = None,
    **options: Any,
) -> LabelsResult:
    """Makes training labels for one step of a recipe by the rules of the db3 paper.

    `step`: name of the step's reply; None: the last step that answers in words. The step answers the
    questions of `data`, or all stored questions. `where` selects among them by clauses `LABEL=V1,V2`. The
    option `judge` names the judging model; None: the step's own model; "words": no model, the words of the
    truth decide. `against`: evaluation questions, as files or `LABEL=V1,V2`. A question in both sets, or
    nearly so, raises DataError. `held_out`: share of questions in the split held-out. `idk_share`: share of
    train rows that say "i don't know"; None: unchanged. `review`: file to write for a person's corrections.
    `reviewed`: such a file; its lines marked "use": true outrank the rules. Labels of calls come only from
    such a file. Replies are cached, so an equal second call sends no chat. `out`: folder for labels.parquet
    and labels.json; None: a new folder under $RAYPIPE_HOME/runs.

    Raises ConfError, ModelMissing, DataError (also if all labels are of one kind), and the errors of
    `evaluate`.
    """
    session, how = session or Session(), EvalOptions(**options)
    made, asked, given, drafts = _prepare(
        session, recipe, data, store, out, step, where, against, held_out, idk_share, review, reviewed, how
    )
    folder = run_folder(out, session.settings, asked.store.uri, f"labels/{made.base.name}-{made.into}")
    others = ("judge", "format", "fields", "limit", "kind", "rule", "oracle", "only", "check")
    of_run = {k: v for k, v in options.items() if k not in others}
    run = evaluate(made.recipe, (), asked.store, folder, session, **of_run, only=list(asked.ids), check=False)
    pipeline = offline_pipeline(session, asked.store, made.recipe)
    questions = list(questions_of(pipeline, asked.ids, None))
    judged = list(training_labels.judged_answers(pipeline, questions, asked.golds, made))
    if drafts is not None:
        label_files.write_review(drafts, judged, made.into)
    labels = training_labels.labels_from(judged, given, held_out, idk_share)
    named = ""
    if labels or made.judged:
        training_labels.require_kinds(labels, made.judged, judged)
        about = _about(made, asked, where)
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
    step: str | None = None,
    where: Sequence[str] = (),
    against: Sequence[str | Path] = (),
    out: str | Path | None = None,
    held_out: float = HELD_OUT,
    idk_share: float | None = None,
    review: str | Path | None = None,
    reviewed: str | Path | None = None,
    session: Session | None = None,
    **options: Any,
) -> PlanResult:
    """Plans the calls that `make_labels` may make, without making them. Takes the same arguments, and raises
    the errors that `make_labels` raises before its first call."""
    session, how = session or Session(), EvalOptions(**options)
    with tempfile.TemporaryDirectory(prefix="raypipe-plan-") as scratch:
        made, asked, _, _ = _prepare(
            session,
            recipe,
            data,
            store,
            out,
            step,
            where,
            against,
            held_out,
            idk_share,
            review,
            reviewed,
            how,
            Path(scratch),
        )
        only: dict[str, Any] = {"fields": how.fields, "only": asked.ids}
        return plan(made.recipe, data, asked.store, how.format, session=session, **only)


def _prepare(
    session: Session,
    recipe: Named,
    data: Data,
    store: Place,
    out: str | Path | None,
    step: str | None,
    where: Sequence[str],
    against: Sequence[str | Path],
    held_out: float,
    idk_share: float | None,
    review: str | Path | None,
    reviewed: str | Path | None,
    how: EvalOptions,
    scratch: Path | None = None,
) -> tuple[Labelling, TrainingQuestions, dict[str, str], Path | None]:
    """Checks all names, then reads files and questions. Returns the labelling recipe, the questions, a
    person's labels (question id -> label), and the review file. `scratch`: see `training_questions`."""
    label_files.require_share("--held-out", held_out)
    label_files.require_share("--idk-share", idk_share)
    if out is not None:
        require_writable(run_folder(out, session.settings, "", ""), "--out")
    drafts, corrections = (
        None if file is None else Path(session.settings.place(str(file), name))
        for file, name in ((review, "--review"), (reviewed, "--import"))
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
    judge = _judge(session, how.judge)
    check, context = (prompt_file(session.settings.conf, name) for name in (CHECK, CONTEXT))
    named = labelling(base, step, judge, check, context, {})
    if not named.judged and drafts is None and corrected is None:
        raise ConfError(
            f"--step {named.into}: labels of calls are drafts until a person has looked at them. Write the "
            "drafts with --review FILE, correct them, and name the file with --import"
        )
    asked = training_questions(session, given, store, where, against, how, scratch)
    truths = {
        id: asked.golds[id].answers for id in asked.ids if id in asked.golds and asked.golds[id].answers
    }
    made = labelling(base, step, judge, check, context, truths)
    if made.judged and not truths:
        raise DataError(
            f"{asked.store.uri}: expected training questions with answers, found none of {len(asked.ids)} "
            "with one"
        )
    splits = training_labels.splits_of({id: asked.texts[id] for id in asked.ids}, held_out)
    if (made.judged or corrected) and "train" not in splits.values():
        raise DataError(
            f"--held-out {held_out:g}: expected questions to train on, found all {len(asked.ids)} held out. "
            "Lower it, or label more questions"
        )
    return made, asked, _reviewed(session, made, corrected or {}, asked), drafts


def _judge(session: Session, name: str | None) -> Model | Words | None:
    if name is None or name == WORDS:
        return WORDS if name == WORDS else None
    return generator_of(session, "--judge", name)


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


def _about(made: Labelling, asked: TrainingQuestions, where: Sequence[str]) -> dict[str, str]:
    model = made.step.model
    return {
        "step": made.into,
        "recipe_name": made.base.name,
        "model": model.name,
        "model_weights": model.weights,
        "judge": made.judge,
        "labelled_by": made.recipe.digest(),
        "store": asked.store.uri,
        "where": " ".join(where),
    }


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
    about = {r: {"about": p[0], "label": p[1]} for r, p in training_labels.PATHS.items()}
    paths = [
        {**p, **(about[p["rule"]] if p["rule"] else {"about": training_labels.WHY[p["why"]], "label": ""})}
        for p in map(asdict, training_labels.paths_of(judged, given))
        if made.judged or p["rule"] in ("", "imported")
    ]
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
        paths=paths,
        examples=training_labels.examples_of(judged, labels),
        evaluated=asked.evaluated,
        planned=None if None in planned else sum(p or 0 for p in planned),
        computed=sum(s.computed for s in steps),
        cached=sum(s.cached for s in steps),
        review=None if review is None else str(review),
    )
