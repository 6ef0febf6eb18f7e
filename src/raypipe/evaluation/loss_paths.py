"""Paths of a gold answer through a recipe, and the place on a path where the gold was lost.

A path is a chain of stages: the path of pages (parse, split, recall, rank, read), or a plugin's path, such as
of a graph. A stage's role on a path follows from its step's declarations: reads and writes, gate, and
optional methods (`recipes.step_contract`). Nothing here reads the store: `evaluation.losses` does.
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
from raypipe.steps.hits import best_first

REPLY = "replies."


@dataclass(frozen=True, slots=True)
class SourcesHolding:
    """The sources that contain the gold of a question, among those that the question may search."""

    content: bool = False  # True: the raw content of some source contains the gold
    texts: frozenset[str] = frozenset()  # ids of the sources whose parsed text contains the gold
    passages: frozenset[str] = frozenset()  # ids of the sources with a passage that has the complete gold


@dataclass(frozen=True, slots=True)
class GoldEvidence:
    """A question, its gold, and the places in the recipe where the gold was seen."""

    asked: Question
    answered: Question
    gold: GoldText
    labels: Mapping[str, str] = field(default_factory=dict)  # the gold's labels
    passages: frozenset[str] = frozenset()  # chunk ids of the hits that contain the gold
    shown: Mapping[str, bool] = field(default_factory=dict)  # stage -> whether its context contains the gold
    sources: SourcesHolding | None = None  # None: not searched, since the place does not depend on them


class EvidencePath(ABC):
    """A path whose evidence does not come from pages, but for example from a graph. A plugin registers a
    subclass under the name of the path's step in recipes."""

    replies: frozenset[str]  # names of the replies that are made only from this evidence, not from passages

    @abstractmethod
    def __init__(self, recipe: Recipe, stage: Stage[Any]) -> None: ...

    @abstractmethod
    def lost(self, e: GoldEvidence) -> LostAt:
        """Returns the place on this path where the gold of a wrong answer was lost."""

    def is_nearer(self, e: GoldEvidence, own: LostAt, pages: LostAt) -> bool:
        """Returns whether the gold got further on this path than on the path of pages. `own` and `pages` are
        the places of the loss on these paths. The default is true if no page has the gold (`Loss.PAGES`)."""
        return pages.loss == Loss.PAGES

    def add(self, question: Question, gold: Gold) -> None:  # noqa: B027, most count nothing
        """Compares the replies on this path with the gold, and counts the result. Does nothing by default."""

    def score(self) -> CallScore | None:
        """Returns the counts that `add` made, or None if there are no golds for these replies."""
        return None


PATHS: Registry[type[EvidencePath]] = Registry("loss_stages", {}, "an EvidencePath")


def evidence_path(recipe: Recipe) -> EvidencePath | None:
    """Returns the recipe's first path other than that of pages, or None if there is no other."""
    stage = next((s for s in recipe.question if s.verb in PATHS), None)
    return None if stage is None else PATHS[stage.verb](recipe, stage)


class RecipePaths:
    """A recipe's stages grouped by their role, and rules that locate a loss among them."""

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
        """Returns the ids of the sources that a question may search, or None for the whole store."""
        return None if self._everything else question.sources()

    def needs_sources(self, e: GoldEvidence) -> bool:
        """Returns whether the place of the loss depends on which sources contain the gold. It does not if a
        hit, a context or the answer contains the gold, if no stage replies from passages, or if the answer
        was made only from the plugin's path."""
        later = e.passages or any(e.shown.values()) or e.gold.said(e.answered.answer)
        return not later and bool(self.showing) and e.answered.origin not in self._not_of_pages

    def place(self, e: GoldEvidence) -> LostAt:
        """Returns the place where the gold was lost, for a wrong answer. Checks backwards: first the answer,
        then the replies that `decide` chooses from, then the paths. If there are two paths, the place is on
        the path on which the gold got further."""
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
        """Returns the place where relevant documents were lost. The ranking's first ten must lack them."""
        if e.passages & set(e.answered.order) and self.ranking:
            last = self.ranking[-1]
            return LostAt(Loss.RERANK if "order" in last.step.reads() else Loss.FUSION, last.name)
        return self._not_ranked(e) if e.passages else self._not_found(e)

    # ------------------------------------------------------------ the pages

    def _on_pages(self, e: GoldEvidence) -> LostAt:
        """Returns the place on the path of pages. If no stage reads passages, it is the answering stage."""
        active = [s for s in self.showing if self.replied(s, e.answered)]
        saying, replies = [s for s in active if e.shown.get(s.name)], e.answered.replies
        # A stage may also reply from earlier replies that were made from pages. It counts as well if one of
        # these earlier replies contains the gold.
        for name in sorted(self._decided - self._not_of_pages):
            stage = self._writers.get(REPLY + name)
            if stage is not None and stage not in self.showing and self.replied(stage, e.answered):
                read = [replies[n].text for n in named(stage.step.reads(), "replies") if n in replies]
                if any(map(e.gold.said, read)):
                    saying.append(stage)
        if saying:
            return LostAt(Loss.ANSWER, saying[0].name)
        if not self.showing:
            stage = self._writers.get(REPLY + e.answered.origin) or self._writers.get("outcome")
            return LostAt(Loss.ANSWER, stage.name if stage else "")
        if e.passages & set(e.answered.order):
            stage = active[-1] if active else self.showing[-1]
            return LostAt(Loss.BUDGET if active else Loss.ROUTING, stage.name)
        return self._not_ranked(e) if e.passages else self._not_found(e)

    def _not_ranked(self, e: GoldEvidence) -> LostAt:
        """Returns the place if hits have the gold and the final ranking lacks it. The place is the first of
        the last rankings, all of which lack the gold. If the gold's hits lack the scores that this ranking
        reads, the place is the search that should have given them."""
        outs: list[tuple[Stage[Step], frozenset[str]]] = []
        for stage in self.ranking:  # each keeps the best `top` hits by the score that it writes
            own = named(stage.step.writes(), "hits")
            scores = {h.chunk: h.scores[own[0]] for h in e.answered.hits if own and own[0] in h.scores}
            if scores:
                outs.append((stage, frozenset(best_first(scores, getattr(stage.step, "top", None)))))
        if not outs:
            return LostAt(Loss.ROUTING, self.ranking[0].name if self.ranking else "")
        first = len(outs) - 1  # the last ranking is known to lack the gold
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

    def replied(self, stage: Stage[Step], answered: Question) -> bool:
        """Returns whether a stage replied to the question; a fault counts as a reply."""
        made = (answered.replies.get(n, SKIPPED_REPLY) for n in named(stage.step.writes(), "replies"))
        return any(reply.label != SKIPPED for reply in made)
