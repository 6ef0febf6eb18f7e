"""Holds routers and programs of calls against golds, while answers pass. Reads no store and runs no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from raypipe.core.protocols import GraphReplies
from raypipe.core.records import ANSWERED, FAULT, INVALID, SKIPPED, SKIPPED_REPLY, Gold, Question
from raypipe.kg.language.parser import parser
from raypipe.kg.language.program import Program, print_program
from raypipe.metrics.losses import GoldText
from raypipe.metrics.routing import PROGRAM, RULE, CallScore, Routing, router_scores
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import graph_replies, graphs_of


class RoutingCheck:
    """Counts, question by question, what golds say of replies."""

    def __init__(self, recipe: Recipe) -> None:
        self._confusion: dict[str, dict[str, Counter[str]]] = {}  # reply -> label of the gold, of the reply
        self._calls = Counter[str]()
        self._names: GraphReplies | None = None
        self._grammar = ""
        self._parse: Callable[[str], Program] | None = None
        for stage in recipe.question:
            if self._names is None and (names := graph_replies(stage.step)) is not None:
                self._names, self._grammar = names, graphs_of(stage.step)[0].grammar

    def add(self, question: Question, gold: Gold) -> None:
        replies, count, names = question.replies, self._calls, self._names
        for name, label in gold.labels.items():
            said = replies.get(name, SKIPPED_REPLY).label
            if said not in (SKIPPED, FAULT):
                self._confusion.setdefault(name, {}).setdefault(label, Counter())[said] += 1
        if names is None or PROGRAM not in gold.labels:
            return
        count["questions"] += 1
        program = replies.get(names.calls, SKIPPED_REPLY)
        if program.label == ANSWERED:
            count["given"] += 1
            if self._canonical(program.text) == self._canonical(gold.labels[PROGRAM]):
                count["same"] += 1
                count["same_rule"] += replies.get(names.rule or "", SKIPPED_REPLY).label == gold.labels.get(
                    RULE
                )
        answer = replies.get(names.answer or "", SKIPPED_REPLY)
        count["right"] += answer.label in (ANSWERED, INVALID) and GoldText(gold.answers).said(answer.text)

    def _canonical(self, program: str) -> str:
        if self._parse is None:  # reading the grammar takes .4 s
            self._parse = parser(self._grammar)
        return print_program(self._parse(program)).casefold()

    def found(self) -> Routing:
        count, names, calls = self._calls, self._names, None
        if names is not None and count["questions"]:
            calls = CallScore(
                names.calls, count["questions"], count["given"], count["same"],
                None if names.rule is None else count["same_rule"],
                None if names.answer is None else count["right"],
            )  # fmt: skip
        return Routing(router_scores(self._confusion), calls)
