"""What a forget found and decided: one file of the store until all of it is done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.records import Question
from raypipe.runs.forget.mentions import Mentions
from raypipe.runs.forget.target import Target
from raypipe.runs.pipeline.tombstones import Tombstone, without_sources
from raypipe.runs.store_records import write_record
from raypipe.store import Store
from raypipe.store.layout import FORGETTING
from raypipe.store.rewrite import Rows


@dataclass(frozen=True, slots=True)
class Holding:
    """One thing that holds what is forgotten, or rests on it."""

    kind: str  # table, memo, answers, release, run, labels, adapter, captured, note, kept
    name: str
    rows: int  # that go, or are changed
    does: str  # what becomes of it, for people


@dataclass(frozen=True, slots=True)
class ForgetDecision:
    """All that a forget will do. Written before anything of it is done."""

    target: Target
    given: str  # as the command named it
    tombstone: Tombstone
    rows: tuple[Rows, ...]  # that go, at most one record of each table
    cited: tuple[str, ...]  # ids of questions that lose a citation, or a part of one
    newest: Mapping[str, int]  # table -> its version before
    pinned: Mapping[str, tuple[int, ...]]  # table -> older versions that are named, and hold such rows
    releases: tuple[str, ...]  # ids of those whose tables hold it
    ended: tuple[str, ...]  # of these, ids of those that end without a successor
    notes: tuple[str, ...]  # fingerprints of reads of files that had it
    folders: tuple[str, ...]  # of runs
    labels: tuple[str, ...]  # folders of training labels
    adapters: tuple[str, ...]  # that were trained on such labels, by name
    repeated: tuple[str, ...]  # what tells the text: `Mentions.runs`
    rare: tuple[str, ...]  # and `Mentions.rare`
    made: Mapping[str, Mapping[str, int]] | None = None
    """Table -> old version -> the version without it; None: not all tables are rewritten."""

    @property
    def id(self) -> str:
        """Begins the tags of what it makes."""
        return f"forget-{self.tombstone.id[:12]}"

    @property
    def mentions(self) -> Mentions:
        """What tells a text that repeats what is forgotten."""
        return Mentions(frozenset(self.repeated), frozenset(self.rare))

    def uncited(self, question: Question) -> Question:
        """The question without the citations, and parts of citations, that go."""
        if question.citations is None:
            return question
        urls, sources = set(self.target.urls), set(self.target.sources)
        left = (without_sources(c, sources) for c in question.citations if c.url not in urls)
        return replace(question, citations=tuple(left))


def save(store: Store, decision: ForgetDecision) -> None:
    """Writes a decision down, in the place of an earlier state of it."""
    write_record(store, _place(decision.tombstone.id), decision)


def begun(store: Store, given: str) -> ForgetDecision | None:
    """The decision of a forget with this name that has not ended."""
    for name, tree in _begun(store):
        if tree["given"] == given:
            return config.build(ForgetDecision, tree, Where(f"{store.uri}/{name}"))
    return None


def end(store: Store, decision: ForgetDecision) -> None:
    store.files.remove(_place(decision.tombstone.id))


def unfinished_forgets(store: Store) -> list[str]:
    """What the commands of forgets that have not ended named."""
    return [tree["given"] for _, tree in _begun(store)]


def _place(id: str) -> str:
    return f"{FORGETTING}/{id}.json"


def _begun(store: Store) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in (f"{FORGETTING}/{n}" for n in store.files.names(FORGETTING)):
        if (raw := store.files.read(name)) is not None:
            yield name, json.loads(raw)
