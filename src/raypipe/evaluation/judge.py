"""The judge: a model that decides whether a prediction agrees with the truth where no rule can.

Knows the rules' prompts and what a rule leaves open; knows neither how a verdict is counted (`metrics.crag`)
nor where replies are kept. Truths are asked in turn until one is met, as CRAG's evaluator does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raypipe.core.llm import Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.metrics.crag import Prediction, Rule, open_truths
from raypipe.text.prompt import Prompt
from raypipe.text.replies import parse_response
from raypipe.text.sanitize import escape_markup

PROMPTS: Mapping[Rule, str] = {"official": "judge/official", "accuracy": "db3/p_check_gt"}
"""Each rule's prompt under prompts/. The first is shown one truth at a time, the second all of them."""

MAX_TOKENS = 256  # of a judgement: a score and one sentence


@dataclass(frozen=True, slots=True)
class Judge:
    """The model that judges, and its prompt."""

    model: Model
    prompt: Prompt
    rule: Rule


@dataclass(slots=True)
class JudgeResult:
    """What a judge said about predictions."""

    replies: dict[str, str] = field(default_factory=dict)  # question id -> the reply that decides
    pairs: int = 0  # predictions that it judged
    unreadable: int = 0  # of these, how many got no judgement that can be read, and none that says right
    no_reply: int = 0  # of these, how many got no reply, and were not found right by another truth
    faults: Counter[str] = field(default_factory=Counter)  # reason -> calls without a reply


async def judged(
    judge: Judge, generate: Generator, rows: Sequence[Prediction], texts: Mapping[str, str]
) -> JudgeResult:
    """Asks about every prediction that the rule leaves open. `texts`: question id -> question.

    A prediction that a truth is found to agree with is right. Of others the reply that cannot be read is
    kept before one that says wrong; where a call got no reply none is kept, since it may have said right.
    """
    done = JudgeResult()
    asks = {r.question: _asks(judge, r, texts[r.question]) for r in rows}
    asks = {id: chats for id, chats in asks.items() if chats}
    done.pairs = len(asks)
    said: dict[str, list[str | Fault]] = {id: [] for id in asks}
    sampling, turn = Sampling(max_tokens=MAX_TOKENS), 0
    while left := [id for id in asks if turn < len(asks[id]) and not _right(judge.rule, said[id])]:
        replies = await generate([asks[id][turn] for id in left], sampling)
        for id, reply in zip(left, replies, strict=True):
            said[id].append(reply.text if isinstance(reply, Generated) else reply)
        turn += 1
    for id, replies_of in said.items():
        _settle(judge.rule, id, replies_of, done)
    return done


def _asks(judge: Judge, row: Prediction, text: str) -> list[Chat]:
    """The chats that may be needed for one prediction, in order."""
    if not (truths := open_truths(row, judge.rule)):
        return []
    render = judge.prompt.renderer()
    values = {"text": escape_markup(text), "prediction": escape_markup(row.prediction or "")}
    if judge.rule == "accuracy":
        return [render({**values, "truths": escape_markup(json.dumps(truths, ensure_ascii=False))})]
    return [render({**values, "truth": escape_markup(truth)}) for truth in truths]


def _right(rule: Rule, said: Sequence[str | Fault]) -> bool:
    return any(isinstance(s, str) and _score(rule, s) == 1 for s in said)


def _score(rule: Rule, reply: str) -> int:
    """1 right, 0 wrong, -1 cannot be read."""
    if rule == "accuracy":
        found = reply.lower()
        return 1 if "true" in found else 0 if "false" in found else -1
    return parse_response(reply).score


def _settle(rule: Rule, id: str, said: Sequence[str | Fault], done: JudgeResult) -> None:
    replies = [s for s in said if isinstance(s, str)]
    faults = [s for s in said if isinstance(s, Fault)]
    done.faults.update(f.reason for f in faults)
    right = [r for r in replies if _score(rule, r) == 1]
    if faults and not right:
        done.no_reply += 1
        return
    unreadable = [r for r in replies if _score(rule, r) == -1]
    done.unreadable += bool(unreadable and not right)
    done.replies[id] = (right or unreadable or replies)[0]
