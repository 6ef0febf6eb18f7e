"""What is still named: by releases, by the last run of each recipe, by endpoints. Everything else may go.

Roots are named explicitly: releases by their ids, recipes by the files that they were read from. Which run of
a recipe is the last one follows from the numbers of records; clocks play no part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from raypipe.core.config import did_you_mean
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.recipes.serialize import fields_of, references_in
from raypipe.runs.changes import LOOKED_BACK
from raypipe.runs.record import Run, recent
from raypipe.runs.release import Release, history, releases
from raypipe.store import Store, read_now
from raypipe.store.memo.memo import replies_of, request_replies_of

EVERY_RUN = 1_000_000  # more than a store has


@dataclass(frozen=True, slots=True)
class Roots:
    """What a store has finished, and what of it is kept."""

    runs: tuple[Run, ...]  # finished, the latest first
    last: tuple[Run, ...]  # of each recipe
    releases: tuple[Release, ...]  # every one
    released: tuple[Release, ...]  # that `rollback` goes back through, and those that it went back from
    named: frozenset[str]  # tables that a root names
    named_once: frozenset[str]  # tables that any run or release ever named

    def older(self) -> list[Run]:
        """Runs that no root is, and that no plan and no comparison looks back to."""
        kept = {r.run for r in (*self.last, *self.runs[:LOOKED_BACK])} | {r.run for r in self.released}
        return [r for r in self.runs if r.run not in kept]


def roots(store: Store) -> Roots:
    runs, every = recent(store, EVERY_RUN), releases(store)
    ids = history(store)
    # what is newer than the live one was rolled back, and may be promoted again; the next promote ends that
    newer = [r.id for r in every].index(ids[-1]) + 1 if ids else len(every)
    released = [r for i, r in enumerate(every) if r.id in ids or i >= newer]
    last = last_of_each(runs)
    return Roots(
        tuple(runs), tuple(last), tuple(every), tuple(released),
        frozenset(tables_named(last, released) | read_now(store.files).keys()),
        frozenset(tables_named(runs, every)),
    )  # fmt: skip


def last_of_each(runs: Sequence[Run]) -> list[Run]:
    """The last run of each recipe, by the recipe's file; `runs` has the latest first. A run with --set counts
    where no run of the file as it is has finished."""
    ordered = sorted(reversed(runs), key=lambda r: not r.recipe.get("sets"))
    return list({r.recipe.get("file") or r.recipe["name"]: r for r in ordered}.values())


def tables_named(runs: Iterable[Run], released: Iterable[Release]) -> set[str]:
    """Tables that these runs and releases name: of their corpus, and the memo of their models and graphs."""
    runs, released = list(runs), list(released)
    found = {t for r in runs for t in r.tables} | {t for r in released for t in r.tables}
    identities = {m.identity for r in runs for m in r.models}
    identities |= {model_identity(m) for m in _models(released)}
    found |= {f"{kind}-{identity}" for kind in ("embeddings", "scores") for identity in identities}
    found |= {table for table, _ in replies_named(runs, released)}
    return found | request_tables(runs, released)


def replies_named(runs: Iterable[Run], released: Iterable[Release]) -> set[tuple[str, str]]:
    """Memo table of a language model's replies, and the name of the model, of each that these name."""
    records = [m for r in runs for m in r.models if m.kind == "generator"]
    found = {(m.replies or f"replies-{m.identity}", m.name) for m in records}
    return found | {(replies_of(m).name, m.name) for m in _models(released) if m.kind == "generator"}


def _models(released: Iterable[Release]) -> list[Model]:
    found = [Model(**fields) for r in released for fields in fields_of(r.recipe, Model)]
    return [m for m in found if not m.absent]


def adapters_named(runs: Iterable[Run], released: Iterable[Release]) -> set[str]:
    """Identities of the adapters of the models that these runs and releases name."""
    recipes = [*(r.recipe for r in runs), *(r.recipe for r in released)]
    return {identity for r in recipes for m in fields_of(r, Model) for _, identity in m["adapters"]}


def releases_naming(store: Store, adapters: Collection[str]) -> tuple[str, ...]:
    """Ids of the releases that a model with one of these adapters (identities) answers."""
    return tuple(r.id for r in releases(store) if not adapters_named([], [r]).isdisjoint(adapters))


def request_tables(runs: Iterable[Run], released: Iterable[Release]) -> set[str]:
    """The memo of what servers, such as a graph's, replied to these runs and releases."""
    recipes = [*(r.recipe for r in runs), *(r.recipe for r in released)]
    return {request_replies_of(ref["version"]).name for r in recipes for ref in references_in(r)}


def replies_given_up(found: Roots, models: Collection[str]) -> set[str]:
    """Memo tables of the replies of some language models, by their names. Raises ConfError for a model that
    no run names, or that a root names."""
    named: dict[str, set[str]] = {}
    for table, name in replies_named(found.runs, found.releases):
        named.setdefault(name, set()).add(table)
    tables = set[str]()
    for name in models:
        if name not in named:
            raise ConfError(f"--replies {name!r}: no finished run names it; {did_you_mean(name, named)}")
        free = named[name] - found.named
        if not free:
            raise ConfError(
                f"--replies {name!r}: expected a model that nothing asks any more; a release or the last run "
                "of a recipe names it, and asks it again without them"
            )
        tables |= free
    return tables
