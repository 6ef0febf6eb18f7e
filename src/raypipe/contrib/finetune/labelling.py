"""The recipe that makes training labels for one step: a model judges the step's reply against golds.

Rules of the db3 paper (section 3.3): a judge compares the step's answer with the true one (p_check_gt). If
the answer is wrong, the judge decides whether the step's context has the true answer (p_context). Both calls
are ordinary stages, so they are cached, planned, resumed and committed once. One stage holds the golds and
writes them as replies, which only the judging prompts read. No run of such a recipe can be promoted.
`training_labels` derives the labels from the judgements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from raypipe.contrib.crag.losses import graph_replies
from raypipe.contrib.finetune.truth_steps import (
    AGREES,
    MENTIONED,
    NO,
    RIGHT,
    TRUTH,
    TRUTHS,
    WORDS,
    WRONG,
    YES,
    Truths,
    WordJudge,
    Words,
)
from raypipe.core.config import Where, did_you_mean
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model, Step
from raypipe.core.records import ABSTAINED, ANSWERED, INVALID, SKIPPED
from raypipe.evaluation.judge import MAX_TOKENS
from raypipe.recipes.read_recipe import checked
from raypipe.recipes.recipe import RANKING, Labels, Recipe, Stage
from raypipe.recipes.step_contract import step_class
from raypipe.runs.plan.staleness import overlap
from raypipe.steps.decide import Decide
from raypipe.steps.generate import Generate
from raypipe.text.template import REPLY, ByLabel, Prompt, uses

CONTEXT_TOKENS = 3
"""Tokens of a yes/no reply: as many as db3 allows for the one-word reply to its domain prompt."""
CHECK, CONTEXT = "db3/p_check_gt", "db3/p_context"  # names of the prompts


@dataclass(frozen=True, slots=True)
class Labelling:
    """A labelling recipe, and the step whose replies it labels."""

    recipe: Recipe  # with the judging stages
    base: Recipe  # the original recipe
    step: Generate  # without an adapter
    judge: str  # name of the judging model, or WORDS; "": the step writes calls, which no rule labels

    @property
    def judged(self) -> bool:
        """Returns whether the rules give the labels, rather than a person."""
        return bool(self.judge)

    @property
    def into(self) -> str:
        return self.step.into


def labelling(
    recipe: Recipe,
    into: str | None,
    judge: Model | Words | None,
    check: Prompt,
    context: Prompt,
    golds: Mapping[str, tuple[str, ...]],
) -> Labelling:
    """Builds the recipe that labels one step of a recipe.

    `into`: the step's reply; None: the last reply that is an answer in words. `judge`: the judging model;
    None: the step's own model; WORDS: no model, the words of the truth decide. `golds`: question id ->
    truths. Raises ConfError if the recipe has no such step, and if the step's prompt shows no context.
    """
    at = _stage_of(recipe, into)
    stage = recipe.question[at]
    step = replace(cast(Generate, stage.step), adapter=ByLabel(None))
    before, made = _before(recipe, at)
    judged = step.reply != "calls"
    own = {TRUTHS, TRUTH, *((AGREES, MENTIONED) if judged else ())}
    if taken := sorted(own & {w.removeprefix(REPLY) for w in (*made, *step.writes())}):
        raise ConfError(
            f"recipe {recipe.name}: reply {taken[0]!r} has the name of one that labelling makes. Rename it"
        )
    when: dict[str, Labels] = dict(_ungated(stage, made).when)
    after: Sequence[Stage[Step]]
    prefer: tuple[str, ...] = (step.into,)
    if not judged:
        # A person's label needs only the chat: with the skipped truth, a row with an unreadable reply passes.
        golds = {}
        prefer = (step.into, TRUTH)
        runs = (s for s in recipe.question[at + 1 :] if graph_replies(s.step) is not None)
        after = [replace(s, when={}) for s in runs if REPLY + step.into in s.step.reads()]
    else:
        when[TRUTH] = (ANSWERED,)
        if judge == WORDS:
            after = [_own_stage("words", WordJudge(step=step), {TRUTH: (ANSWERED,)})]
        else:
            after = _judging(recipe, step, judge or step.model, check, context)
    truths = _own_stage("truths", Truths(golds=golds), {})
    labelled = replace(stage, step=step, when=when)
    stages = (*before, truths, labelled, *after, Stage("decide", Decide(prefer=prefer)))
    name = f"{recipe.name}+labels-{step.into}"
    whole = replace(recipe, name=name, file=f"{recipe.file}+labels-{step.into}", question=stages)
    named = WORDS if judge == WORDS else (judge or step.model).name
    return Labelling(checked(whole, Where(name)), recipe, step, named if judged else "")


def _stage_of(recipe: Recipe, into: str | None) -> int:
    """Returns the index of the step to label. Raises ConfError if no step fits."""
    known = {s.step.into: (n, s.step) for n, s in enumerate(recipe.question) if isinstance(s.step, Generate)}
    if into is not None and into not in known:
        hint = did_you_mean(into, known)
        raise ConfError(f"--step {into}: recipe {recipe.name} has no generate step of that reply; {hint}")
    answering = ("plain", "confidence")
    words = [(n, step) for n, step in known.values() if step.reply in answering]
    if into is None and not words:
        raise ConfError(f"recipe {recipe.name} has no generate step that answers: name one with --step")
    at, step = words[-1] if into is None else known[into]
    if step.model.absent:
        raise ConfError(
            f"recipe {recipe.name}: {recipe.question[at].name} asks no model, so there is nothing to label. "
            "Name a model with --set or --llm"
        )
    if step.reply not in (*answering, "calls"):
        raise ConfError(
            f"--step {step.into}: expected a step that answers or writes calls, found reply: {step.reply}"
        )
    if step.reply != "calls" and "context" not in {v for p in step.prompt.values() for v in p.variables}:
        raise ConfError(
            f"--step {step.into}: its prompt shows no context. Label a step that reads passages or facts"
        )
    return at


def _before(recipe: Recipe, at: int) -> tuple[list[Stage[Step]], set[str]]:
    """Returns the earlier stages that the step depends on, in order, and the fields that they write. Gates on
    replies that no remaining stage writes are removed, so every question reaches the labelled step."""
    needed = set(recipe.question[at].step.reads())
    searches = "order" in needed
    kept: list[Stage[Step]] = []
    for stage in reversed(recipe.question[:at]):
        writes = stage.step.writes()
        ranks = searches and any(w.startswith(RANKING) for w in writes)
        if not ranks and not any(overlap(w, n) for w in writes for n in needed):
            continue
        needed |= stage.step.reads()
        if not ranks:
            needed |= stage.gate_reads()
        kept.insert(0, stage)
    made = {w for s in kept for w in s.step.writes()}
    return [_ungated(s, made) for s in kept], made


def _ungated(stage: Stage[Step], made: set[str]) -> Stage[Step]:
    when = {r: x for r, x in stage.when.items() if replace(stage, when={r: x}).gate_reads() <= made}
    return replace(stage, when=when)


def _judging(
    recipe: Recipe, step: Generate, judge: Model, check: Prompt, context: Prompt
) -> tuple[Stage[Step], Stage[Step]]:
    agrees = Generate(
        model=judge,
        prompt=ByLabel(reading(check, {"truths": TRUTHS, "prediction": step.into})),
        into=AGREES,
        reply="label",
        labels=(RIGHT, WRONG),
        max_tokens=MAX_TOKENS,
    )
    counts = (step.tokenizer or step.model) if step.context_tokens is not None else None
    mentioned = replace(
        step,
        model=judge,
        prompt=ByLabel(reading(context, {"truth": TRUTH})),
        into=MENTIONED,
        reply="label",
        labels=(YES, NO),
        max_tokens=CONTEXT_TOKENS,
        tokenizer=counts,
        default=None,
        after="",
        confident=None,
        choices=(),
        schema=None,
        grammar=None,
        fill={},
        logprobs=False,
        temperature=0.0,
        top_p=1.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
    )
    truth = {TRUTH: (ANSWERED,)}
    return (
        Stage(f"generate:{AGREES}", agrees, {**truth, step.into: (ANSWERED, INVALID)}),
        Stage(
            f"generate:{MENTIONED}",
            mentioned,
            {**truth, step.into: (ANSWERED, INVALID, ABSTAINED), AGREES: (WRONG, SKIPPED)},
        ),
    )


def reading(prompt: Prompt, replies: Mapping[str, str]) -> Prompt:
    """Returns a prompt in which replies replace some of the variables.

    >>> reading(Prompt("{{ text }}: {{ truth }}", "", ("text", "truth")), {"truth": "gold"}).variables
    ('text', 'replies.gold')
    """

    def put(text: str) -> str:
        put_in = sorted(uses(text) & set(replies))
        return "".join(f"{{% set {n} = replies[{json.dumps(replies[n])}] %}}" for n in put_in) + text

    variables = tuple(REPLY + replies[v] if v in replies else v for v in prompt.variables)
    return Prompt(put(prompt.user), put(prompt.system), variables)


def _own_stage(name: str, step: Truths | WordJudge, when: Mapping[str, Labels]) -> Stage[Step]:
    """Returns a stage whose step class is named by its path, like a step from outside raypipe."""
    _, plugin = step_class(f"{type(step).__module__}:{type(step).__name__}")
    return Stage(name, step, when, plugin)
