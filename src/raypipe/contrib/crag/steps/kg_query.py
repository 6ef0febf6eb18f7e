"""Queries to a knowledge graph: a program of calls gives sentences, and an answer if a rule is named.

If the graph is down or replies with garbage, the row gets a fault, and other replies may still answer it.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, get_args

from raypipe.contrib.crag.language.answer_rules import RULES, apply_rule
from raypipe.contrib.crag.records import MOST_REQUESTS, CallResult, GraphReplies, Level
from raypipe.contrib.crag.references import GraphRef
from raypipe.core.errors import DataError
from raypipe.core.protocols import Ask, Bound, Kit, Reach
from raypipe.core.records import ABSTAINED, ANSWERED, FAULT, IDK, SKIPPED_REPLY, TRACE, Fault, Question, Reply
from raypipe.text.moments import moment
from raypipe.text.page_parser import storable
from raypipe.text.template import REPLY, ByLabel

if TYPE_CHECKING:
    from raypipe.contrib.crag.graph_adapter import GraphAdapter

WRITTEN = frozenset(
    {"bad_call", "bad_condition", "bad_mean", "bad_time", "no_rows", "no_values", "too_many", "unknown_key"}
)
"""Reasons of faults in the program itself: no graph could answer its line."""
REQUESTS = 6  # requests of an ordinary program: a search, and an entity for each of two or three hops
MOST_TRACED = 10  # most values, and most requests, of a line in its trace


@dataclass(frozen=True, slots=True, kw_only=True)
class KgQuery:
    """Runs the program in the reply `calls` at the question's time; writes its sentences into `into`.

    `into` is answered if there is a sentence. Otherwise it is abstained, or a fault if the graph failed in
    every line, or transiently in one. If no graph could answer any line (WRITTEN), it is abstained, with the
    reason.

    With `rule` and `answer`: the label of the reply `rule` names one of `answer_rules.RULES`. The rule makes
    the reply `answer` from the values: answered, abstained, or invalid for a false premise. `certain` lists,
    in general or by domain, the levels of linking on which an answer may rest. If a name was linked at
    another level, `answer` is abstained. `domain` is the reply whose label decides what `get_person` means.
    `trace` is the reply with a line of JSON for each line of the program; only its durations differ between
    runs.

    A transient fault (no server) is also recorded in `degraded`: the row is answered without the graph, is
    not stored, and is tried again.
    """

    graph: GraphRef
    calls: str  # reply with the program
    into: str = "facts"
    rule: str | None = None  # reply whose label names the rule
    answer: str | None = None  # reply for the rule's answer
    certain: ByLabel[tuple[str, ...]] | None = None  # of contrib.crag.records.Level; None: all
    domain: str | None = None  # reply whose label is the domain
    trace: str | None = None  # reply for the trace of each line

    version: ClassVar[int] = 6

    def __post_init__(self) -> None:
        if self.certain is not None:
            if self.answer is None:
                raise ValueError("certain: expected with an answer, found none")
            for level in (x for levels in self.certain.values() for x in levels):
                if level not in get_args(Level):
                    known = ", ".join(get_args(Level))
                    raise ValueError(f"certain: expected one of {known}, found {level!r}")
        if (self.rule is None) != (self.answer is None):
            raise ValueError("rule and answer: expected both or neither, found one")
        names = [n for n in (self.into, self.answer, self.trace) if n is not None]
        if len(set(names)) < len(names) or not all(names):
            raise ValueError(f"into, answer and trace: expected names of their own, found {names}")

    def reads(self) -> frozenset[str]:
        names = [n for n in (self.calls, self.rule, self.domain) if n is not None]
        by = frozenset() if self.certain is None else self.certain.reads()
        return by | {"asked_at", *(REPLY + n for n in names)}

    def writes(self) -> frozenset[str]:
        names = (self.into, self.answer, self.trace)
        return frozenset(REPLY + n for n in names if n is not None) | {"degraded"}

    def graph_replies(self) -> GraphReplies:
        return GraphReplies(self.calls, self.into, self.rule, self.answer, self.trace)

    def bound(self, question: Question, reach: Reach) -> Bound:
        requests = 0 if self.graph.kind == "folder" else MOST_REQUESTS
        vectors = self.graph.most_vectors()
        likely = math.inf if vectors else min(requests, REQUESTS)
        return Bound(requests + vectors, reach, "never", likely=likely)

    def open(self, kit: Kit) -> Ask:
        graph = kit.data(self.graph)

        async def ask(questions: list[Question]) -> list[Question]:
            return list(await asyncio.gather(*(self._one(graph, q) for q in questions)))

        return ask

    async def _one(self, graph: GraphAdapter, question: Question) -> Question:
        calls = question.replies[self.calls]
        if calls.label != ANSWERED:
            return self._with_replies(question, Reply(IDK, ABSTAINED), None)
        domain = "" if self.domain is None else question.replies[self.domain].label
        try:
            results = await graph.run(calls.text, question.asked_at, domain)
        except DataError as e:  # the question's time cannot be read
            broken = Reply("", FAULT, fault=Fault("kg_query", "bad_time", str(e), False))
            return self._with_replies(question, broken, None)
        facts, trace = self._facts(results), Reply("\n".join(_traced(r) for r in results), TRACE)
        if any(r.fault is not None and r.fault.transient for r in results):
            question = replace(question, degraded=(*question.degraded, f"kg_query:{self.into}"))
        levels = get_args(Level) if self.certain is None else self.certain.of(question)
        certain = all(link.level in levels for r in results for link in r.links)
        answer = None
        if self.rule is not None and facts.label != FAULT and certain:
            rule = question.replies[self.rule].label
            if rule in RULES:
                read = apply_rule(rule, results, moment(question.asked_at).day)
                answer = Reply(storable(read.text), read.label)
        return self._with_replies(question, facts, answer, trace)

    def _facts(self, results: Sequence[CallResult]) -> Reply:
        sentences = [storable(s) for r in results for s in r.sentences]
        faults = [r.fault for r in results if r.fault is not None]
        if sentences:
            return Reply("\n".join(sentences), ANSWERED)
        transient = [f for f in faults if f.transient]
        if transient or (faults and len(faults) == len(results)):
            of_graph = transient or [f for f in faults if f.reason not in WRITTEN]
            fault = replace((of_graph or faults)[0], step=f"kg_query:{self.into}")
            return Reply("", FAULT, fault=fault) if of_graph else Reply(IDK, ABSTAINED, fault=fault)
        return Reply(IDK, ABSTAINED)

    def _with_replies(
        self, question: Question, facts: Reply, answer: Reply | None, trace: Reply = SKIPPED_REPLY
    ) -> Question:
        replies = {**question.replies, self.into: facts}
        if self.trace is not None:
            replies[self.trace] = trace
        if self.answer is not None:
            replies[self.answer] = answer or (facts if facts.label == FAULT else Reply(IDK, ABSTAINED))
        return replace(question, replies=replies)


def _traced(result: CallResult) -> str:
    """Formats a line's trace as JSON. Requests include those that the memo answered."""
    kept = {
        "call": result.call,
        "links": [[k.written, k.kind, k.name, k.level] for k in result.links],
        "unknown": list(result.unknown),
        "requests": len(result.requests),
        "request": list(result.requests[:MOST_TRACED]),
        "rows": len(result.rows),
        "values": list(result.values[:MOST_TRACED]),
        "sentences": len(result.sentences),
        "fault": None if result.fault is None else [result.fault.reason, result.fault.detail],
        "ms": round(result.ms, 3),
    }
    return storable(json.dumps(kept, ensure_ascii=False))
