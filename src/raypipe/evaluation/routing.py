"""Holds routers and programs of calls against golds, while answers pass. Reads no store and runs no model."""

from __future__ import annotations

from collections.abc import Callable

from raypipe.core.protocols import GraphReplies
from raypipe.core.records import ANSWERED, FAULT, INVALID, SKIPPED, Gold, Question, Reply
from raypipe.kg.language.parser import parser
from raypipe.kg.language.program import Program, print_program
from raypipe.metrics.losses import GoldText
from raypipe.metrics.routing import PROGRAM, RULE, CallScore, Routing, RoutingCounts
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import graph_replies, graphs_of

_NONE = Reply("", SKIPPED)


class RoutingCheck:
    """Counts, question by question, what golds say of replies."""

    def __init__(self, recipe: Recipe) -> None:
        self._counts = RoutingCounts()
        self._names: GraphReplies | None = None
        self._grammar = ""
        self._parse: Callable[[str], Program] | None = None
        for stage in recipe.question:
            if self._names is None and (names := graph_replies(stage.step)) is not None:
                self._names, self._grammar = names, graphs_of(stage.step)[0].grammar

    def add(self, question: Question, gold: Gold) -> None:
        """One answered question."""
        for name, label in gold.labels.items():
            reply = question.replies.get(name, _NONE)
            if reply.label not in (SKIPPED, FAULT):
                self._counts.routed(name, label, reply.label)
        if self._names is not None and PROGRAM in gold.labels:
            self._call(question, gold, self._names)

    def _call(self, question: Question, gold: Gold, names: GraphReplies) -> None:
        count, replies = self._counts.calls, question.replies
        count["questions"] += 1
        program = replies.get(names.calls, _NONE)
        if program.label == ANSWERED:
            count["given"] += 1
            if self._canonical(program.text) == self._canonical(gold.labels[PROGRAM]):
                count["same"] += 1
                count["same_rule"] += replies.get(names.rule or "", _NONE).label == gold.labels.get(RULE)
        answer = replies.get(names.answer or "", _NONE)
        said = answer.label in (ANSWERED, INVALID) and GoldText(gold.answers).said(answer.text)
        count["right"] += said

    def _canonical(self, program: str) -> str:
        if self._parse is None:  # reading the grammar takes .4 s
            self._parse = parser(self._grammar)
        return print_program(self._parse(program)).casefold()

    def found(self) -> Routing:
        """What was counted."""
        count, names = self._counts.calls, self._names
        if names is None or not count["questions"]:
            return Routing(self._counts.routers(), None)
        calls = CallScore(
            names.calls, count["questions"], count["given"], count["same"],
            None if names.rule is None else count["same_rule"],
            None if names.answer is None else count["right"],
        )  # fmt: skip
        return Routing(self._counts.routers(), calls)
