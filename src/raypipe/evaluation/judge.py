"""The judge: a model, or code from outside, that says whether a prediction agrees with the truth.

It decides what a rule of scoring leaves open. Knows the rules' prompts; does not know how a verdict is
counted (`metrics.crag`). A model is asked about truths in turn until one is met, as CRAG's evaluator does.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from raypipe.core import plugins
from raypipe.core.bounded_rows import batches
from raypipe.core.calls import retrying
from raypipe.core.errors import ConfError
from raypipe.core.llm import Chat, Generated, Generator, JsonSchema, Sampling
from raypipe.core.plugins import Plugin
from raypipe.core.protocols import Model
from raypipe.core.records import Fault, Gold
from raypipe.metrics.crag import Prediction, Rule, open_truths
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.tasks import TRIES
from raypipe.runs.plan.records import JudgePlan
from raypipe.runs.run_parts import JudgeLine
from raypipe.steps.rows import ask_each
from raypipe.store import Store
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import StoreMemo, memo_versions, merge_memo
from raypipe.text.replies import parse_response
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import Prompt
from raypipe.text.thoughts import split_thoughts

PROMPTS: Mapping[Rule, str] = {"official": "judge/official", "accuracy": "db3/p_check_gt"}
"""Each rule's prompt under prompts/. The first is shown one truth at a time, the second all of them."""

_ANSWERS: Mapping[Rule, Mapping[str, Any]] = {
    "official": {
        "score": {"enum": [0, 1]},
        "explanation": {"type": "string", "pattern": r"^[ !#-\[\]-z|~]{0,120}$"},
    },
    "accuracy": {"Accuracy": {"enum": ["True", "False"]}},
}
"""What each rule's prompt asks for. No brace in the explanation: CRAG's evaluator reads the last {...}. And
ASCII, so that the longest one takes fewer than MAX_TOKENS."""


def schema(rule: Rule) -> JsonSchema:
    """The form of a judgement by a rule."""
    fields = _ANSWERS[rule]
    whole = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return JsonSchema(json.dumps(whole))


MAX_TOKENS = 256  # of a judgement: a score and one sentence
CAPPED_AT_ONCE = 100  # calls in flight under a cap, as many as answers of a task

Spend: TypeAlias = Callable[[CallCounts], None]
"""Is told what the judge was asked so far, before it is asked more; raises CapReached where that is all."""


@dataclass(frozen=True, slots=True)
class ModelJudge:
    """A model that judges, its prompt, and the kit that calls it. Replies are cached like any others."""

    model: Model
    prompt: Prompt
    rule: Rule
    kit: LocalKit

    def chats(self, row: Prediction, question: str) -> list[Chat]:
        """The chats about a prediction: of each truth, or of all at once; none where the rule decides."""
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
        """Its replies by question id, and what they cost. `texts`: question id -> question; `fresh`: nothing
        that is cached is used; `spend`: of a cap, which is asked before each CAPPED_AT_ONCE calls."""
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
                f"that cannot be read: it cannot judge, so nothing was scored. The answers are kept; name "
                f"another judge"
            )
        return replies, line


Agrees: TypeAlias = Callable[[str, str, tuple[str, ...]], "bool | None"]
"""Verdict on whether a prediction agrees with one of the truths, given the question; None: it cannot tell."""


@dataclass(frozen=True, slots=True)
class OwnJudge:
    """A judge from outside: `agrees(question, prediction, truths)`. What it cannot tell stays unscored."""

    agrees: Agrees
    plugin: Plugin
    rule: Rule

    @classmethod
    def load(cls, path: str, rule: Rule) -> OwnJudge:
        """Imports it. Raises ConfError for a path that leads to no function."""
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
            agrees = self.agrees(texts[row.question], row.prediction or "", truths)
            if agrees is not None and not isinstance(agrees, bool):
                raise ConfError(f"{self.plugin.path}: expected True, False or None, found {agrees!r:.80}")
            if agrees is not None:  # in the words of both rules
                replies[row.question] = json.dumps({"score": int(agrees), "accuracy": agrees})
        named = f"{self.plugin.path}@{self.plugin.source[:8]}"
        return replies, JudgeLine(named, pairs, pairs, 0, 0, pairs - len(replies), {}, 0, 0, 0)


Judge: TypeAlias = ModelJudge | OwnJudge
"""Decides what a rule leaves open."""


def judge_plan(model: Model, rule: Rule, golds: Iterable[Gold]) -> JudgePlan:
    """The most that a judge is asked about answers to questions with these golds."""
    open_ = [open_truths(Prediction(g.question, OPEN, g.answers), rule) for g in golds if g.answers]
    calls = sum(len(truths) if rule == "official" else bool(truths) for truths in open_)
    return JudgePlan(model.name, calls, calls * model.max_model_len)


OPEN = "\0"
"""An answer that no rule decides: no truth equals it."""


def judge_sampling(model: Model, rule: Rule) -> Sampling:
    """Returns what is sent with each chat of a judge. A model that thinks writes its thoughts first, which
    are no JSON."""
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
    """Asks about every prediction that the rule leaves open: the replies that decide, by question id, and
    what they cost by `tally`. `texts`: question id -> question; `spend`: is told before each CAPPED_AT_ONCE
    calls.

    A prediction that a truth is found to agree with is right. Of others the reply that cannot be read is
    kept before one that says wrong; where a call got no reply none is kept, since it may have said right.
    """
    rule = judge.rule
    asks = {r.question: chats for r in rows if (chats := judge.chats(r, texts[r.question]))}
    said: dict[str, list[str | Fault]] = {id: [] for id in asks}
    sampling, turn = judge_sampling(judge.model, rule), 0

    def score_of(reply: str) -> int:
        """1 right, 0 wrong, -1 cannot be read."""
        if rule == "accuracy":
            found = reply.lower()
            return 1 if "true" in found else 0 if "false" in found else -1
        return parse_response(reply).score

    def scored(id: str, score: int) -> list[str]:
        """The replies about a question that have this score."""
        return [s for s in said[id] if isinstance(s, str) and score_of(s) == score]

    while left := [id for id in asks if turn < len(asks[id]) and not scored(id, 1)]:
        for some in batches(left, len(left) if spend is None else CAPPED_AT_ONCE):
            if spend is not None:
                spend(tally)
            replies = await ask_each(generate, some, [asks[id][turn] for id in some], sampling)
            for id, reply in zip(some, replies, strict=True):
                if isinstance(reply, Generated):  # thoughts alone are a text that is no judgement
                    said[id].append(split_thoughts(reply.text).answer or "(thoughts alone)")
                else:
                    said[id].append(reply)
        turn += 1
    decided, faults, unread, silent = dict[str, str](), Counter[str](), 0, 0
    for id, replies_of in said.items():
        right, unreadable, wrong = (scored(id, score) for score in (1, -1, 0))
        failed = [s.reason for s in replies_of if isinstance(s, Fault)]
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
