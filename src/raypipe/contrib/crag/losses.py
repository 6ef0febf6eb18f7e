"""Path of evidence through a knowledge graph: the place where a gold answer was lost, and the match of
programs with gold programs. Pure functions on answered questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from raypipe.contrib.crag.language.program import Program, print_program
from raypipe.contrib.crag.records import GraphReplies
from raypipe.contrib.crag.references import GraphRef
from raypipe.core.records import (
    ABSTAINED,
    ANSWERED,
    FAULT,
    INVALID,
    SKIPPED,
    SKIPPED_REPLY,
    Gold,
    Question,
    Reply,
)
from raypipe.core.textfile import json_lines
from raypipe.evaluation.loss_paths import REPLY, EvidencePath, GoldEvidence
from raypipe.metrics.losses import PROGRAM, RULE, CallScore, GoldText, Loss, LostAt
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import decides, named, named_by, shows_passages

UNREAD, UNLINKED, EMPTY, CONCLUDED = "program", "linking", "rows", "rule"
"""Places of loss on this path, in its order; `plugin.TABLE.loss_places` describes each."""

KG_ANSWERABLE = "kg_answerable"  # label of invented worlds; "false": the graph lacks the answer


def graph_replies(step: Any) -> GraphReplies | None:
    """Returns the names of the replies of a step that runs a program over a graph, from its method
    `graph_replies`. None: the step runs no program."""
    names: Callable[[], GraphReplies] | None = getattr(step, "graph_replies", None)
    return None if names is None else names()


class GraphPath(EvidencePath):
    """Path through the stage that runs programs over a graph."""

    def __init__(self, recipe: Recipe, stage: Stage[Any]) -> None:
        names = graph_replies(stage.step)
        assert names is not None  # the stage is a kg_query
        self._stage, self._names, self._stages = stage, names, recipe.question
        self._writers = {w: s for s in self._stages for w in s.step.writes()}
        names_written = {REPLY + n for n in (names.facts, names.answer) if n is not None}
        for s in self._stages[self._stages.index(stage) + 1 :]:
            if s.step.reads() & names_written and not shows_passages(s.step) and not decides(s.step):
                names_written |= {w for w in s.step.writes() if w.startswith(REPLY)}
        self.replies = frozenset(w.removeprefix(REPLY) for w in names_written)
        self._count = Counter[str]()

    def lost(self, e: GoldEvidence) -> LostAt:
        names, stage = self._names, self._stage
        replies, writer = e.answered.replies, self._writer(REPLY + names.calls)
        calls, facts = replies.get(names.calls), replies.get(names.facts)
        if calls is None or calls.label == SKIPPED:
            return LostAt(Loss.ROUTING, writer)
        if (wrong := self._misrouted(e)) is not None:
            return LostAt(Loss.ROUTING, wrong)
        if calls.label == ABSTAINED:
            return LostAt(Loss.ROUTING, writer)
        if calls.label == FAULT:
            return LostAt(UNREAD, writer)
        if facts is None or facts.label == SKIPPED:
            return LostAt(Loss.ROUTING, stage.name)
        abstained = names.answer is not None and replies.get(names.answer, SKIPPED_REPLY).label == ABSTAINED
        lost = _place_in_run(_lines(replies, names), facts, abstained, e.gold.denies)
        if lost != CONCLUDED:
            return LostAt(lost, stage.name)
        made = self.replies - {names.facts, names.answer or names.facts}
        later = [
            s.name
            for s in self._stages
            for n in (w.removeprefix(REPLY) for w in s.step.writes())
            if n in made and replies.get(n, SKIPPED_REPLY).label != SKIPPED
        ]
        return LostAt(lost, later[-1] if later else stage.name)  # the last stage that used the graph's reply

    def is_nearer(self, e: GoldEvidence, own: LostAt, pages: LostAt) -> bool:
        if e.labels.get(KG_ANSWERABLE, "").lower() == "false":
            return False
        if pages.loss == Loss.PAGES:
            return True
        facts = e.answered.replies.get(self._names.facts, SKIPPED_REPLY)
        if own.loss != CONCLUDED or facts.label != ANSWERED or pages.loss in (Loss.ANSWER, Loss.ROUTING):
            return False
        values = [str(v) for x in _lines(e.answered.replies, self._names) for v in x["values"]]
        return e.gold.held("\n".join([facts.text, *values]))  # the graph's facts hold the gold

    def add(self, question: Question, gold: Gold) -> None:
        if PROGRAM not in gold.labels:
            return
        replies, names, count = question.replies, self._names, self._count
        count["questions"] += 1
        program = replies.get(names.calls, SKIPPED_REPLY)
        if program.label == ANSWERED:
            count["given"] += 1
            if self._canonical(program.text) == self._canonical(gold.labels[PROGRAM]):
                count["same"] += 1
                rule = replies.get(names.rule or "", SKIPPED_REPLY).label
                count["same_rule"] += rule == gold.labels.get(RULE)
        answer = replies.get(names.answer or "", SKIPPED_REPLY)
        count["right"] += answer.label in (ANSWERED, INVALID) and GoldText(gold.answers).said(answer.text)

    def score(self) -> CallScore | None:
        count, names = self._count, self._names
        if not count["questions"]:
            return None
        return CallScore(
            names.calls,
            count["questions"],
            count["given"],
            count["same"],
            None if names.rule is None else count["same_rule"],
            None if names.answer is None else count["right"],
        )

    @cached_property
    def _parse(self) -> Callable[[str], Program]:
        from raypipe.contrib.crag.language.parser import parser  # reading the grammar takes .4 s

        return parser(named_by(GraphRef, self._stage.step)[0].grammar)

    def _canonical(self, program: str) -> str:
        return print_program(self._parse(program)).casefold()

    def _misrouted(self, e: GoldEvidence) -> str | None:
        """Returns the stage whose label of a question, on which this path depends, differs from the gold's;
        or None."""
        routed = self._stage.step.reads() | self._stage.gate_reads()
        if (writer := self._writers.get(REPLY + self._names.calls)) is not None:
            routed |= writer.step.reads() | writer.gate_reads()
        for name in sorted(named(routed, "replies")):
            reply = e.answered.replies.get(name)
            if name in e.labels and reply and reply.label not in (e.labels[name], SKIPPED, FAULT):
                return self._writer(REPLY + name)
        return None

    def _writer(self, field_name: str) -> str:
        stage = self._writers.get(field_name)
        return stage.name if stage else ""


def _lines(replies: Mapping[str, Reply], names: GraphReplies) -> list[dict[str, Any]]:
    """Returns the lines of a program's trace; [] if no trace is kept."""
    return json_lines(replies.get(names.trace, SKIPPED_REPLY).text if names.trace is not None else "")


def _place_in_run(lines: Sequence[Mapping[str, Any]], facts: Reply, abstained: bool, denies: bool) -> str:
    """Returns the place where a program that ran lost the answer. `abstained`: its rule gave no answer.
    `denies`: the gold says that the premise is false, so missing rows are no loss."""
    for line in lines:
        if line["fault"] is not None:
            return UNREAD
        if line["unknown"] and not denies:
            return UNLINKED
    if facts.label == FAULT:
        return UNREAD
    empty = [not line["rows"] for line in lines] or [facts.label != ANSWERED]
    if not denies and (all(empty) or (abstained and any(empty))):
        return EMPTY
    return CONCLUDED
