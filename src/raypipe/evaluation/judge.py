"""Judges, which decide whether a prediction agrees with the truths: models, or functions of plugins.

A judge decides only the predictions that the scoring rule leaves open; `metrics.verdict_rules` counts the
verdicts. By rule `official`, as in CRAG's evaluator, a model judges one truth per call until the prediction
agrees with one. By rule `accuracy`, a model judges all truths in one call.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from raypipe.core import plugins
from raypipe.core.backoff import retrying
from raypipe.core.bounded_rows import batches
from raypipe.core.errors import ConfError
from raypipe.core.llm import Chat, Generated, Generator, JsonSchema, Sampling
from raypipe.core.plugins import Plugin
from raypipe.core.protocols import Model
from raypipe.core.records import Gold
from raypipe.metrics.verdict_rules import Prediction, Rule, open_truths
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.tasks import TRIES
from raypipe.runs.plan.records import JudgePlan
from raypipe.runs.run_parts import JudgeLine
from raypipe.steps.prompts import ask_each
from raypipe.store import Store
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import StoreMemo, memo_versions, merge_memo
from raypipe.text.replies import parse_response
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import Prompt
from raypipe.text.thoughts import split_thoughts

PROMPTS: Mapping[Rule, str] = {"official": "judge/official", "accuracy": "db3/p_check_gt"}
"""Rule -> its prompt under prompts/. The prompt of `official` shows one truth, the other shows all."""

_ANSWERS: Mapping[Rule, Mapping[str, Any]] = {
    "official": {
        "score": {"enum": [0, 1]},
        "explanation": {"type": "string", "pattern": r"^[ !#-\[\]-z|~]{0,120}$"},
    },
    "accuracy": {"Accuracy": {"enum": ["True", "False"]}},
}
"""Rule -> JSON fields of a judgement. The explanation has no brace, since CRAG's evaluator reads the last
{...}. It is ASCII, so the longest one has fewer than MAX_TOKENS tokens."""


def schema(rule: Rule) -> JsonSchema:
    """Returns the JSON schema that a judge's reply by this rule must have."""
    fields = _ANSWERS[rule]
    whole = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return JsonSchema(json.dumps(whole))


MAX_TOKENS = 256  # limit of a judgement: a score and one sentence
CAPPED_AT_ONCE = 100  # calls in flight under a cap, as many as a task has answers

Spend: TypeAlias = Callable[[CallCounts], None]
"""Function that receives the judge's counts before further calls. Raises CapReached at a cap."""


@dataclass(frozen=True, slots=True)
class ModelJudge:
    """A judge model with its prompt and the kit that calls it. Its replies are cached."""

    model: Model
    prompt: Prompt
    rule: Rule
    kit: LocalKit

    def chats(self, row: Prediction, question: str) -> list[Chat]:
        """Returns the chats that judge a prediction: one per open truth by rule `official`, one with all open
        truths by rule `accuracy`. Returns no chats if the rule decides without a judge."""
        truths, render = open_truths(row, self.rule), self.prompt.renderer()
        values = {"text": escape_markup(question), "prediction": escape_markup(row.prediction or "")}
        each = [{"truth": escape_markup(truth)} for truth in truths]
        if truths and self.rule == "accuracy":
            each = [{"truths": escape_markup(json.dumps(truths, ensure_ascii=False))}]
        return [render({**values, **one}) for one in each]

    def ask(
        self,
        store: Store,
        rows: Sequence[Prediction],
        texts: Mapping[str, str],
        fresh: bool,
        spend: Spend | None = None,
    ) -> tuple[Mapping[str, str], JudgeLine]:
        """Judges the predictions that the rule leaves open. Returns the deciding replies by question id, and
        the counts of the calls. `texts` maps question ids to questions. `fresh` ignores cached replies.
        `spend` checks a cap before each CAPPED_AT_ONCE calls. Raises ConfError if over half of the deciding
        replies are unreadable."""
        tally = CallCounts()
        memo = StoreMemo(store.uri, memo_versions(store), fresh)
        generate = retrying(cached(self.kit, memo, tally).generator(self.model), TRIES)

        async def ask() -> tuple[Mapping[str, str], JudgeLine]:
            try:
                return await judged(self, generate, rows, texts, tally, spend)
            finally:
                await self.kit.close()

        try:
            replies, line = asyncio.run(ask())
        finally:
            merge_memo(store)
        if 2 * line.unreadable > len(replies):
            raise ConfError(
                f"--judge {self.model.name}: expected judgements, found {line.unreadable} of {len(replies)} "
                "that cannot be read, so nothing was scored. The answers are kept; name another judge"
            )
        return replies, line


Agrees: TypeAlias = Callable[[str, str, tuple[str, ...]], "bool | None"]
"""(question, prediction, truths) -> whether the prediction agrees with a truth; None: it cannot tell."""


@dataclass(frozen=True, slots=True)
class OwnJudge:
    """A plugin's judge, `agrees(question, prediction, truths)`. None leaves a prediction unscored."""

    agrees: Agrees
    plugin: Plugin
    rule: Rule

    @classmethod
    def load(cls, path: str, rule: Rule) -> OwnJudge:
        """Imports the function at `path`. Raises ConfError if `path` names no function."""
        agrees, plugin = plugins.load(path, "a judge")
        if not callable(agrees):
            raise ConfError(
                f"{path}: expected a function of question, prediction and truths, found {agrees!r:.80}"
            )
        return cls(agrees, plugin, rule)

    def ask(
        self,
        store: Store,
        rows: Sequence[Prediction],
        texts: Mapping[str, str],
        fresh: bool,
        spend: Spend | None = None,
    ) -> tuple[Mapping[str, str], JudgeLine]:
        replies, pairs = {}, 0
        for row in rows:
            if not (truths := open_truths(row, self.rule)):
                continue
            pairs += 1
            with plugins.own_code(
                "judge", self.plugin.path, f"question {row.question}", "True, False or None"
            ):
                agrees = self.agrees(texts[row.question], row.prediction or "", truths)
            if agrees is not None and not isinstance(agrees, bool):
                raise ConfError(f"{self.plugin.path}: expected True, False or None, found {agrees!r:.80}")
            if agrees is not None:  # readable by both rules
                replies[row.question] = json.dumps({"score": int(agrees), "accuracy": agrees})
        named = f"{self.plugin.path}@{self.plugin.source[:8]}"
        return replies, JudgeLine(named, pairs, pairs, 0, 0, pairs - len(replies), {}, 0, 0, 0)


Judge: TypeAlias = ModelJudge | OwnJudge
"""Decides the predictions that a rule leaves open."""


def judge_plan(model: Model, rule: Rule, golds: Iterable[Gold]) -> JudgePlan:
    """Returns the most calls and tokens that judging can take, for answers to questions with these golds."""
    # "\0" equals no truth, so every rule leaves it open.
    open_ = [open_truths(Prediction(g.question, "\0", g.answers), rule) for g in golds if g.answers]
    calls = sum(len(truths) if rule == "official" else bool(truths) for truths in open_)
    return JudgePlan(model.name, calls, calls * model.max_model_len)


def judge_sampling(model: Model, rule: Rule) -> Sampling:
    """Returns the sampling of a judge. No schema constrains a thinking model: it writes thoughts first."""
    held = None if model.thought_tokens else schema(rule)
    return Sampling(max_tokens=MAX_TOKENS + model.thought_tokens, constraint=held)


async def judged(
    judge: ModelJudge,
    generate: Generator,
    rows: Sequence[Prediction],
    texts: Mapping[str, str],
    tally: CallCounts,
    spend: Spend | None = None,
) -> tuple[Mapping[str, str], JudgeLine]:
    """Judges every prediction that the rule leaves open. Returns the deciding replies by question id, and the
    counts of the calls. `tally` counts the calls; the other parameters are those of `ModelJudge.ask`.

    The deciding reply of a question is the first that says right, else the first unreadable one, else the
    first that says wrong. If no reply says right and a call got no reply, the question has no deciding reply,
    because the missing one may have said right.
    """
    rule, sampling = judge.rule, judge_sampling(judge.model, judge.rule)
    asks = {r.question: chats for r in rows if (chats := judge.chats(r, texts[r.question]))}
    said: dict[str, list[tuple[int, str]]] = {id: [] for id in asks}  # readings with their replies, by turn
    lost: dict[str, list[str]] = {id: [] for id in asks}  # reasons of the calls without a reply

    def is_open(id: str) -> bool:
        return turn < len(asks[id]) and all(reading != 1 for reading, _ in said[id])

    turn = 0
    while left := [id for id in asks if is_open(id)]:
        for some in batches(left, len(left) if spend is None else CAPPED_AT_ONCE):
            if spend is not None:
                spend(tally)
            replies = await ask_each(generate, some, [asks[id][turn] for id in some], sampling)
            for id, reply in zip(some, replies, strict=True):
                if isinstance(reply, Generated):  # a reply of only thoughts counts as unreadable
                    text = split_thoughts(reply.text).answer or "(only thoughts)"
                    said[id].append((_reading(rule, text), text))
                else:
                    lost[id].append(reply.reason)
        turn += 1
    decided, faults, unread, silent = dict[str, str](), Counter[str](), 0, 0
    for id, readings in said.items():
        failed = lost[id]
        right, unreadable, wrong = ([text for r, text in readings if r == one] for one in (1, -1, 0))
        faults.update(failed)
        if failed and not right:
            silent += 1
            continue
        unread += bool(unreadable and not right)
        decided[id] = (right or unreadable or wrong)[0]
    calls, tokens, by = tally.replies, tally.tokens, judge.model.name
    took = tokens.prompt, tokens.cached, tokens.generated, tokens.cut, sampling.max_tokens
    line = JudgeLine(by, len(asks), calls.computed, calls.cached, unread, silent, dict(faults), *took)
    return decided, line


def _reading(rule: Rule, reply: str) -> int:
    """Reads a judge's reply: 1 is right, 0 wrong, -1 unreadable."""
    if rule != "accuracy":
        return parse_response(reply).score
    return 1 if "true" in reply.lower() else 0 if "false" in reply.lower() else -1
