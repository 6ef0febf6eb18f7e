"""The ways by which a gold answer can reach a reader through a recipe, and where on them it was lost.

What a stage does is read from what it declares: what it reads and writes, its gate, and the optional parts of
its contract (`recipes.step_contract`). Pure functions on answered questions; reads no store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raypipe.core.plugins import Registry
from raypipe.core.protocols import Step
from raypipe.core.records import ANSWERED, INVALID, SKIPPED, SKIPPED_REPLY, Gold, Question
from raypipe.metrics.losses import CallScore, GoldText, Loss, LostAt
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import decides, named, shows_passages
from raypipe.steps.rows import best_first

REPLY = "replies."


@dataclass(frozen=True, slots=True)
class SourcesHolding:
    """Which of the sources that a question may search hold its gold."""

    content: bool = False  # some source as it came
    texts: frozenset[str] = frozenset()  # ids of those whose parsed text does
    passages: frozenset[str] = frozenset()  # of these, those with a passage that holds all of it


@dataclass(frozen=True, slots=True)
class GoldEvidence:
    """Facts of a question's gold on its way."""

    asked: Question
    answered: Question
    gold: GoldText
    labels: Mapping[str, str] = field(default_factory=dict)  # of the gold
    passages: frozenset[str] = frozenset()  # chunk ids of the hits that hold it
    shown: Mapping[str, bool] = field(default_factory=dict)  # stage that read passages -> they held it there
    sources: SourcesHolding | None = None  # None: not looked through, a hit holds it


class EvidencePath(ABC):
    """A way by which evidence comes to an answer that is not on pages, as from a graph. A plugin registers a
    class for the verb of the step that such a path goes through: made with a recipe and that stage."""

    replies: frozenset[str]  # names of the replies that are made of it, of no passage

    @abstractmethod
    def __init__(self, recipe: Recipe, stage: Stage[Any]) -> None: ...

    @abstractmethod
    def lost(self, e: GoldEvidence) -> LostAt:
        """Says where on this path the gold was lost, should the answer not be right."""

    def is_nearer(self, e: GoldEvidence, own: LostAt, pages: LostAt) -> bool:
        """Says whether the gold came further on this path than on that of the pages."""
        return pages.loss == Loss.PAGES

    def add(self, question: Question, gold: Gold) -> None:  # noqa: B027, most count nothing
        """Counts what the gold says of the replies on this path."""

    def score(self) -> CallScore | None:
        """Gives what was counted; None: no gold says anything of them."""
        return None


PATHS: Registry[type[EvidencePath]] = Registry("loss_stages", {}, "an EvidencePath")


def evidence_path(recipe: Recipe) -> EvidencePath | None:
    """The first path of a recipe that is not of pages; None: it has pages alone."""
    stage = next((s for s in recipe.question if s.verb in PATHS), None)
    return None if stage is None else PATHS[stage.verb](recipe, stage)


class RecipePaths:
    """The stages of a recipe by what they do for an answer."""

    def __init__(self, recipe: Recipe) -> None:
        stages = recipe.question
        self.showing = tuple(s for s in stages if shows_passages(s.step))
        self.ranking = tuple(s for s in stages if "order" in s.step.writes())
        self.recalling = tuple(s for s in stages if "hits" in s.step.writes() and s not in self.ranking)
        self.narrowing = tuple(s for s in stages if "citations" in s.step.writes())
        self.parsing = next((s.name for s in recipe.corpus if "text" in s.step.writes()), "")
        self.splitting = next((s.name for s in recipe.corpus if "parent_start" in s.step.writes()), "")
        self._deciding = next((s for s in stages if decides(s.step)), None)
        self._writers = {w: s for s in stages for w in s.step.writes()}
        self._stages = stages
        self._everything = recipe.searches_all()
        self._own = evidence_path(recipe)
        self._not_of_pages = self._own.replies if self._own else frozenset[str]()
        self._decided = set(named(self._deciding.step.reads() if self._deciding else (), "replies"))

    def searched(self, question: Question) -> tuple[str, ...] | None:
        """The sources that a question may search; None: all in the store."""
        return None if self._everything else question.sources()

    def needs_sources(self, e: GoldEvidence) -> bool:
        """Returns whether the place depends on what its sources hold: nothing that comes later does."""
        later = e.passages or any(e.shown.values()) or e.gold.said(e.answered.answer)
        return not later and bool(self.showing) and e.answered.origin not in self._not_of_pages

    def place(self, e: GoldEvidence) -> LostAt:
        """Returns where the gold was lost, should the answer not be right."""
        replies = e.answered.replies
        if e.gold.said(e.answered.answer):
            return LostAt(Loss.VERDICT)
        for name in sorted(self._decided):
            reply = replies.get(name)
            if reply and reply.label in (ANSWERED, INVALID) and e.gold.said(reply.text):
                return LostAt(Loss.DECISION, self._deciding.name if self._deciding else "")
        if self._own is None:
            return self._on_pages(e)
        own = self._own.lost(e)
        if e.answered.origin in self._own.replies or not self.showing:
            return own
        pages = self._on_pages(e)
        return own if self._own.is_nearer(e, own, pages) else pages

    def place_of_documents(self, e: GoldEvidence) -> LostAt:
        """Returns where the documents that are the gold were lost, should none be among the first of the
        ranking. `GoldEvidence.passages` are the hits of these documents."""
        if e.passages & set(e.answered.order) and self.ranking:
            last = self.ranking[-1]
            return LostAt(Loss.RERANK if "order" in last.step.reads() else Loss.FUSION, last.name)
        return self._not_ranked(e) if e.passages else self._not_found(e)

    # ------------------------------------------------------------ the pages

    def _on_pages(self, e: GoldEvidence) -> LostAt:
        """Returns where the pages' path lost it; of a recipe that shows none, the replies' path."""
        active = [s for s in self.showing if self.replied(s, e.answered)]
        saying, replies = [s for s in active if e.shown.get(s.name)], e.answered.replies
        # Or a stage that replied from other replies, where pages are behind them, and one of these has the
        # gold's words.
        for name in sorted(self._decided - self._not_of_pages):
            stage = self._writers.get(REPLY + name)
            if stage is not None and stage not in self.showing and self.replied(stage, e.answered):
                read = [replies[n].text for n in named(stage.step.reads(), "replies") if n in replies]
                saying += [stage] * any(map(e.gold.said, read))
        if saying:
            return LostAt(Loss.ANSWER, saying[0].name)
        if not self.showing:
            origin = self._writer(REPLY + e.answered.origin) or self._writer("outcome")
            return LostAt(Loss.ANSWER, origin)
        if e.passages & set(e.answered.order):
            stage = active[-1] if active else self.showing[-1]
            return LostAt(Loss.BUDGET if active else Loss.ROUTING, stage.name)
        return self._not_ranked(e) if e.passages else self._not_found(e)

    def _not_ranked(self, e: GoldEvidence) -> LostAt:
        """A hit holds it, and the last ranking does not: the stage from which on no ranking did."""
        outs: list[tuple[Stage[Step], frozenset[str]]] = []
        for stage in self.ranking:  # which leaves the best `top` by the score that it writes
            own = named(stage.step.writes(), "hits")
            scores = {h.chunk: h.scores[own[0]] for h in e.answered.hits if own and own[0] in h.scores}
            if scores:
                outs.append((stage, frozenset(best_first(scores, getattr(stage.step, "top", None)))))
        if not outs:
            return LostAt(Loss.ROUTING, self.ranking[0].name if self.ranking else "")
        first = len(outs) - 1  # the last is the ranking itself
        while first > 0 and not e.passages & outs[first - 1][1]:
            first -= 1
        stage = outs[first][0]
        if "order" in stage.step.reads():
            return LostAt(Loss.RERANK, stage.name)
        wanted = set(named(stage.step.reads(), "hits"))
        if any(h.chunk in e.passages and wanted & h.scores.keys() for h in e.answered.hits):
            return LostAt(Loss.FUSION, stage.name)
        made = [s for s in self.recalling if wanted.intersection(named(s.step.writes(), "hits"))]
        return LostAt(Loss.RECALL, made[-1].name if made else stage.name)

    def _not_found(self, e: GoldEvidence) -> LostAt:
        there = e.sources or SourcesHolding()
        if not there.passages:
            if there.texts:
                return LostAt(Loss.SPLITTING, self.splitting)
            return LostAt(Loss.PARSING, self.parsing) if there.content else LostAt(Loss.PAGES)
        kept = self.searched(e.answered)
        if kept is not None and not there.passages & set(kept):
            return LostAt(Loss.SHORTLIST, self.narrowing[-1].name if self.narrowing else "")
        ran = [s for s in self.recalling if s.admits(e.answered)]
        if ran:
            return LostAt(Loss.RECALL, ran[-1].name)
        return LostAt(Loss.ROUTING, self.recalling[0].name if self.recalling else "")

    def _writer(self, field_name: str) -> str:
        stage = self._writers.get(field_name)
        return stage.name if stage else ""

    def replied(self, stage: Stage[Step], answered: Question) -> bool:
        """Returns whether a stage made a reply, be it a fault."""
        return any(
            answered.replies.get(n, SKIPPED_REPLY).label != SKIPPED
            for n in named(stage.step.writes(), "replies")
        )
