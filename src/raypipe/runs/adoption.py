"""Adoption: a model declared the same one as another of a store, held to what the other one said.

A recipe's requests of the last run are made once more with what the memo holds in the place of models, as an
explanation of a row makes them. What the other model answered is then asked of the new one, and compared.
Names in a catalog get their identity from here (`Catalog.adopted`); nothing else asks who is adopted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any, TypeAlias, cast

import numpy as np

from raypipe.core import arrow
from raypipe.core.config import did_you_mean
from raypipe.core.digests import model_identity, own_identity
from raypipe.core.errors import ConfError, RaypipeError, Unavailable
from raypipe.core.llm import Generator
from raypipe.core.protocols import Adoption, Embed, ForwardingKit, Kit, Model, ModelKind, Score
from raypipe.core.records import Fault
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor, StageError
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.serialize import fields_of, from_plain
from raypipe.runs.pipeline.corpus_operators import chunks_of
from raypipe.runs.pipeline.recipe_tables import searched_at
from raypipe.runs.record import Run, answer_keys, recent
from raypipe.store import Store
from raypipe.store.files import ADOPTED
from raypipe.store.index import LanceIndex
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import StoreMemo, memo_versions
from raypipe.store.memo.lookup import CacheOnlyKit, NotCached
from raypipe.store.segments import read_record, write_record
from raypipe.store.sources import all_sources

LOOKED_BACK = 50  # finished runs among which one is looked for that names the other model
REQUESTS, FEWEST = 100, 20  # that are compared, and as many as the memo must hold
EACH = 10  # of one question or page, at most
TRIED = 200  # questions, and pages, at most
LEAST: Mapping[ModelKind, float] = {"embedder": 0.97, "reranker": 0.97, "generator": 0.9}
"""Least agreement: the share of pairs of texts that both put in the same order, next to a third text or under
a query; of a language model the share of equal replies."""
FARTHEST: Mapping[ModelKind, float] = {"embedder": 0.02, "reranker": 0.05, "generator": 1.0}
"""Largest distance of a request: 1 less the cosine of both vectors; of scores their difference, as a share of
the span of the old ones. Vectors of MiniLM rounded to 16 bits: cosine 1.0000, all in order; moved to a cosine
of .995, as 8 bits do, 98.2 % are in order, to .98 96.3 %. Behind the prefix of another model it has .974 and
95.4 %."""


class NotTheSame(RaypipeError):
    """A model that answers otherwise than the one that it is to be adopted as."""

    exit_code = 7


@dataclass(frozen=True, slots=True)
class AdoptionCheck:
    """The answers of both models to the same requests."""

    kind: ModelKind
    run: str  # whose requests these are
    requests: int
    agreement: float  # 0..1 (LEAST)
    distance: float  # largest of all requests (FARTHEST); of replies 0

    @property
    def passes(self) -> bool:
        return self.agreement >= LEAST[self.kind] and self.distance <= FARTHEST[self.kind]

    def sentence(self) -> str:
        """The same for people."""
        said = {
            "embedder": f"least cosine {1 - self.distance:.4f}, {self.agreement:.1%} of neighbours in order",
            "reranker": f"scores at most {self.distance:.1%} apart, {self.agreement:.1%} of pairs in order",
        }
        equal = f"{self.agreement:.1%} of replies equal"
        return f"{self.requests} requests of run {self.run[:8]}: {said.get(self.kind, equal)}"


@dataclass(frozen=True, slots=True)
class AdoptionRecord:
    """An adoption as a store keeps it."""

    name: str  # of the adopted model
    adoption: Adoption


def adoptions(store: Store) -> dict[str, AdoptionRecord]:
    """Own identity of each adopted model of a store -> what was declared."""
    mend = "Remove the file, and adopt the model again"
    names = store.files.names(ADOPTED)
    found = {n: read_record(store, f"{ADOPTED}/{n}", AdoptionRecord, mend) for n in names}
    return {n.removesuffix(".json"): record for n, record in found.items() if record is not None}


def keep(store: Store, new: Model, adoption: Adoption) -> None:
    """Declares a model the same one as another from now on."""
    write_record(store, f"{ADOPTED}/{own_identity(new)}.json", AdoptionRecord(new.name, adoption))


def end(store: Store, name: str) -> Adoption:
    """Ends the adoption of the model of this name, and returns it. Raises ConfError where there is none."""
    known = {record.name: (id, record) for id, record in adoptions(store).items()}
    if name not in known:
        raise ConfError(f"{store.uri}: no model {name!r} is adopted; {did_you_mean(name, known)}")
    id, record = known[name]
    store.files.remove(f"{ADOPTED}/{id}.json")
    return record.adoption


def original(store: Store, name: str, new: Model) -> tuple[Model, Run]:
    """The model that the last runs of a store call so, other than `new`, and the last run that names it.
    Raises ConfError where none does, and for two that cannot be one: of other kinds, dims or adapters, with
    one identity, or in a chain of adoptions."""
    named, known, same = dict[str, None](), adoptions(store), False
    for run in recent(store, LOOKED_BACK):
        for old in (Model(**fields) for fields in fields_of(run.recipe, Model)):
            named.setdefault(old.name)
            if name not in (old.name, old.repo):
                continue
            if own_identity(old) == own_identity(new):
                same = True
                continue
            _require_one(known, new, old)
            return replace(old, adopted=None), run
    if same:
        raise ConfError(f"{new.name} is {name} already: both have one identity, and share all that is cached")
    expected = f"--as {name!r}: expected a model that a finished run of {store.uri} names"
    if not named:
        raise ConfError(f"{expected}, found no such run: run `raypipe eval` with it first")
    raise ConfError(f"{expected}, other than {new.name} as it is now; {did_you_mean(name, named)}")


def _require_one(known: Mapping[str, AdoptionRecord], new: Model, old: Model) -> None:
    if (of := known.get(own_identity(old))) is not None:
        other = of.adoption.model.name
        raise ConfError(f"{old.name} is adopted as {other} itself: adopt {new.name} as {other}")
    for what in ("kind", "dim"):
        if (a := getattr(new, what)) != (b := getattr(old, what)):
            raise ConfError(f"{new.name}: expected {what} {b} as {old.name} has it, found {a}")
    if lacking := sorted(dict(old.adapters).keys() - dict(new.adapters).keys()):
        raise ConfError(
            f"{new.name}: expected the adapters of {old.name}, found none of {', '.join(lacking)}"
        )
    for record in known.values():
        if own_identity(record.adoption.model) == own_identity(new):
            raise ConfError(f"{record.name} is adopted as {new.name}: end that first, with --undo")


Ask: TypeAlias = Callable[[], Awaitable[object]]


class _Requests(ForwardingKit[Kit]):
    """A kit that keeps requests to one model, and what it said: of each call at most EACH. A request is what
    the call says of all of its requests, and last the text, pair or chat."""

    def __init__(self, kit: Kit, of: Model) -> None:
        super().__init__(kit)
        self._identity, self.found = own_identity(of), dict[Any, Any]()

    def _noted(self, model: Model, call: Any) -> Any:
        async def noted(asked: Sequence[Any], *how: Any) -> Any:
            values = await call(asked, *how)
            if model_identity(model) == self._identity:
                said = {(*how, one): value for one, value in zip(asked, values, strict=True)}
                new = {request: value for request, value in said.items() if request not in self.found}
                self.found |= dict(islice(new.items(), EACH))
            return values

        return noted

    def embedder(self, model: Model) -> Embed:
        return cast(Embed, self._noted(model, self._kit.embedder(model)))

    def reranker(self, model: Model) -> Score:
        return cast(Score, self._noted(model, self._kit.reranker(model)))

    def generator(self, model: Model) -> Generator:
        return cast(Generator, self._noted(model, self._kit.generator(model)))


def requests_of(store: Store, run: Run, old: Model) -> dict[Any, Any]:
    """Requests that a run made of a model, and what it said: those that the memo still holds, at most
    REQUESTS. None is sent. Raises ConfError for a recipe that this raypipe would compute otherwise."""
    recipe = from_plain(run.recipe)
    index = LanceIndex(searched_at(store.uri, recipe, run.tables))
    memo = StoreMemo(store.uri, memo_versions(store))
    kit = _Requests(cached(CacheOnlyKit(LocalKit(index)), memo, CallCounts()), old)

    async def gathered() -> None:
        both = zip_longest(_questions(store, run, recipe, kit), _pages(store, recipe, kit))
        for ask in islice(filter(None, chain.from_iterable(both)), TRIED):
            try:
                await ask()
            except StageError as e:
                if not isinstance(e.__cause__, NotCached):
                    raise
            if len(kit.found) >= REQUESTS:
                return

    asyncio.run(gathered())
    return dict(islice(kit.found.items(), REQUESTS))


def _questions(store: Store, run: Run, recipe: Recipe, kit: Kit) -> Iterator[Ask]:
    answer = QuestionExecutor(recipe, kit)
    for id in sorted(answer_keys(store, run.run)):
        for question in arrow.question.records(store.rows("questions", "id", [id])):
            yield partial(answer, [question])


def _pages(store: Store, recipe: Recipe, kit: Kit) -> Iterator[Ask]:
    corpus, sources = CorpusExecutor(recipe, kit), all_sources(store, recipe.source_kinds())
    places = np.random.default_rng(0).permutation(len(sources))[:TRIED].tolist()
    for model, place in ((m, p) for p in places for m in recipe.embedders()):
        chunks = chunks_of(store, recipe, [sources[place]])
        yield partial(corpus.vectors, chunks, model)


async def compared(kit: Kit, new: Model, run: str, requests: Mapping[Any, Any]) -> AdoptionCheck:
    """Asks the new model what the other one answered (`requests_of`). Raises Unavailable for a server that
    does not reply, and what a model raises."""
    ask: Any = getattr(kit, new.kind)(new)
    said = dict[Any, Any]()
    for how in dict.fromkeys(request[:-1] for request in requests):
        some = [request for request in requests if request[:-1] == how]
        said |= zip(some, await ask([request[-1] for request in some], *how), strict=True)
    if new.kind == "generator":
        for reply in said.values():
            if isinstance(reply, Fault) and reply.transient:
                raise Unavailable(f"{new.name}: {reply.reason}: {reply.detail}")
        equal = [old.text == getattr(said[request], "text", None) for request, old in requests.items()]
        return AdoptionCheck(new.kind, run, len(requests), float(np.mean(equal)), 0.0)
    old, now = (np.array([values[r] for r in requests], np.float32) for values in (requests, said))
    if new.kind == "embedder":  # (requests, dim) unit rows
        far = float(1 - (old * now).sum(axis=1).min())
        rows = [np.arange(len(old)) != i for i in range(len(old))]
        pairs = [(old[row] @ old[i], now[row] @ now[i]) for i, row in enumerate(rows)]
    else:  # (requests,)
        far = float(np.abs(old - now).max() / max(float(np.ptp(old)), 1e-6))
        queries = np.array([query for ((query, _),) in requests])
        pairs = [(old[queries == query], now[queries == query]) for query in np.unique(queries)]
    return AdoptionCheck(new.kind, run, len(old), _agreement(pairs), far)


def _agreement(rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Share of pairs that two scores of the same things put in the same order; of those alone that the first
    tells apart. 1 where there are none.

    >>> round(_agreement([(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))]), 2)
    0.67
    """
    alike = pairs = 0
    for old, new in rows:
        a, b = (np.sign(x[:, None] - x[None, :]) for x in (old, new))
        alike, pairs = alike + int(((a == b) & (a > 0)).sum()), pairs + int((a > 0).sum())
    return alike / pairs if pairs else 1.0
