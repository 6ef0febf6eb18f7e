"""Adoption: declaring two models to be the same, after a comparison of their answers.

The adopted, new model then shares all that is cached for the original model. `requests_of` repeats a run's
requests to the original with cached answers, so it sends nothing. `compared` sends the same requests to the
new model and measures the agreement. `keep` stores the adoption. From then on the catalog of models gives the
new model the original's identity (`Catalog.adopted`).
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

LOOKED_BACK = 50  # newest finished runs in which the original is searched
REQUESTS, FEWEST = 100, 20  # most requests to compare; fewest that must be found in the memo
EACH = 10  # most requests recorded of one call
TRIED = 200  # most questions, and (page, embedder) pairs, whose requests are repeated
LEAST: Mapping[ModelKind, float] = {"embedder": 0.97, "reranker": 0.97, "generator": 0.9}
"""Least agreement to pass. Embedders and rerankers: share of text pairs that both models order alike, by
closeness to a third text or to a query. Generators: share of equal replies."""
FARTHEST: Mapping[ModelKind, float] = {"embedder": 0.02, "reranker": 0.05, "generator": 1.0}
"""Largest distance of one request to pass. Embedders: 1 minus the cosine of both vectors. Rerankers:
difference of both scores, as a share of the span of the original's scores. Measured with vectors of MiniLM:
rounded to 16 bits, cosine 1.0000 and all pairs in order; rounded to 8 bits, cosine .995 and 98.2 % of pairs
in order; at cosine .98, 96.3 %; with the text prefix of another model, cosine .974 and 95.4 %."""


class NotTheSame(RaypipeError):
    """Refusal of an adoption: the answers of both models differ too much."""

    exit_code = 7


@dataclass(frozen=True, slots=True)
class AdoptionCheck:
    """Agreement of two models on the same requests."""

    kind: ModelKind
    run: str  # id of the run that made the requests
    requests: int
    agreement: float  # 0..1, as LEAST defines it
    distance: float  # largest distance of a request, as FARTHEST defines it; 0 for generators

    @property
    def passes(self) -> bool:
        return self.agreement >= LEAST[self.kind] and self.distance <= FARTHEST[self.kind]

    def sentence(self) -> str:
        """Returns the check in one line for people."""
        numbers = {
            "embedder": f"least cosine {1 - self.distance:.4f}, {self.agreement:.1%} of neighbours in order",
            "reranker": f"scores at most {self.distance:.1%} apart, {self.agreement:.1%} of pairs in order",
            "generator": f"{self.agreement:.1%} of replies equal",
        }
        return f"{self.requests} requests of run {self.run[:8]}: {numbers[self.kind]}"


@dataclass(frozen=True, slots=True)
class AdoptionRecord:
    """An adoption, as a store keeps it."""

    name: str  # name of the adopted model
    adoption: Adoption


def adoptions(store: Store) -> dict[str, AdoptionRecord]:
    """Maps each adopted model, by its own identity (`digests.own_identity`), to its record."""
    mend = "Remove the file, and adopt the model again"
    names = store.files.names(ADOPTED)
    records = {n: read_record(store, f"{ADOPTED}/{n}", AdoptionRecord, mend) for n in names}
    return {n.removesuffix(".json"): record for n, record in records.items() if record is not None}


def keep(store: Store, new: Model, adoption: Adoption) -> None:
    """Stores an adoption: from now on `new` counts as the original."""
    write_record(store, f"{ADOPTED}/{own_identity(new)}.json", AdoptionRecord(new.name, adoption))


def end(store: Store, name: str) -> Adoption:
    """Ends the adoptions of all models with this name, and returns the last one made. Raises ConfError if
    there is none."""
    known = adoptions(store)
    mine = {id: record.adoption for id, record in known.items() if record.name == name}
    if not mine:
        names = [record.name for record in known.values()]
        raise ConfError(f"{store.uri}: no model {name!r} is adopted; {did_you_mean(name, names)}")
    for id in mine:
        store.files.remove(f"{ADOPTED}/{id}.json")
    return max(mine.values(), key=lambda adoption: adoption.at)


def original(store: Store, name: str, new: Model) -> tuple[Model, Run]:
    """Finds the model that `new` shall count as, and the newest run that names the model. `name` is its name
    or repository. Raises ConfError if the last LOOKED_BACK finished runs name no such model except `new`
    itself. Also raises ConfError if the found model is itself adopted, `new` is the original of another
    adoption, kind or dim differ, or `new` lacks an adapter."""
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
        raise ConfError(f"{new.name} is {name} already: they have one identity, and share what is cached")
    expected = f"--as {name!r}: expected a model that a finished run of {store.uri} names"
    if not named:
        raise ConfError(f"{expected}, found no such run: run `raypipe eval` with it first")
    raise ConfError(f"{expected}, found none that names it; {did_you_mean(name, named)}")


def _require_one(known: Mapping[str, AdoptionRecord], new: Model, old: Model) -> None:
    if (of := known.get(own_identity(old))) is not None:
        other = of.adoption.model.name
        raise ConfError(f"{old.name} itself is adopted as {other}: adopt {new.name} as {other} instead")
    for what in ("kind", "dim"):
        if (a := getattr(new, what)) != (b := getattr(old, what)):
            raise ConfError(f"{new.name}: expected {what} {b} as {old.name} has it, found {a}")
    if lacking := ", ".join(sorted(dict(old.adapters).keys() - dict(new.adapters).keys())):
        raise ConfError(f"{new.name}: expected the adapters of {old.name}, found none of {lacking}")
    for record in known.values():
        if own_identity(record.adoption.model) == own_identity(new):
            raise ConfError(f"{record.name} is adopted as {new.name}: end that first, with --undo")


Ask: TypeAlias = Callable[[], Awaitable[object]]


class _RequestRecorder(ForwardingKit[Kit]):
    """A kit that records requests to one model with their answers, at most EACH per call. A recorded request
    is a tuple: the arguments that the call shares, such as an embedder's role, then a text, pair or chat."""

    def __init__(self, kit: Kit, model: Model) -> None:
        super().__init__(kit)
        self._identity, self.recorded = own_identity(model), dict[Any, Any]()

    def _recording(self, model: Model, call: Any) -> Any:
        async def recorded_call(requests: Sequence[Any], *common: Any) -> Any:
            values = await call(requests, *common)
            if model_identity(model) == self._identity:
                answers = {(*common, request): value for request, value in zip(requests, values, strict=True)}
                new = (item for item in answers.items() if item[0] not in self.recorded)
                self.recorded |= dict(islice(new, EACH))
            return values

        return recorded_call

    def embedder(self, model: Model) -> Embed:
        return cast(Embed, self._recording(model, self._kit.embedder(model)))

    def reranker(self, model: Model) -> Score:
        return cast(Score, self._recording(model, self._kit.reranker(model)))

    def generator(self, model: Model) -> Generator:
        return cast(Generator, self._recording(model, self._kit.generator(model)))


def requests_of(store: Store, run: Run, old: Model) -> dict[Any, Any]:
    """Returns at most REQUESTS requests that a run's recipe makes to a model, with their cached answers.
    Sends none. To find requests, it runs questions and a random sample of the store's pages through the
    recipe, with cached values only. Each stops at the first value that is not cached. Raises ConfError if
    this raypipe would compute the recipe differently, and StageError if a stage raises for another reason."""
    recipe = from_plain(run.recipe)
    index = LanceIndex(searched_at(store.uri, recipe, run.tables))
    memo = StoreMemo(store.uri, memo_versions(store))
    kit = _RequestRecorder(cached(CacheOnlyKit(LocalKit(index)), memo, CallCounts()), old)

    async def gathered() -> None:
        both = zip_longest(_questions(store, run, recipe, kit), _pages(store, recipe, kit))
        for ask in islice(filter(None, chain.from_iterable(both)), TRIED):
            try:
                await ask()
            except StageError as e:
                if not isinstance(e.__cause__, NotCached):
                    raise
            if len(kit.recorded) >= REQUESTS:
                return

    asyncio.run(gathered())
    return dict(islice(kit.recorded.items(), REQUESTS))


def _questions(store: Store, run: Run, recipe: Recipe, kit: Kit) -> Iterator[Ask]:
    answer = QuestionExecutor(recipe, kit)
    for id in sorted(answer_keys(store, run.run)):
        for question in arrow.question.records(store.rows("questions", "id", [id])):
            yield partial(answer, [question])


def _pages(store: Store, recipe: Recipe, kit: Kit) -> Iterator[Ask]:
    corpus, sources = CorpusExecutor(recipe, kit), all_sources(store, recipe.source_kinds())
    places = np.random.default_rng(0).permutation(len(sources))[:TRIED].tolist()
    for model, place in ((m, p) for p in places for m in recipe.embedders()):
        yield partial(corpus.vectors, chunks_of(store, recipe, [sources[place]]), model)


async def compared(kit: Kit, new: Model, run: str, requests: Mapping[Any, Any]) -> AdoptionCheck:
    """Sends recorded requests to the new model and compares its answers with the recorded answers. A final
    fault counts as a different reply. Raises Unavailable for a transient fault, and any error of the model.
    `run` is the id of the run that made the requests."""
    ask: Any = getattr(kit, new.kind)(new)
    answers = dict[Any, Any]()
    for common in dict.fromkeys(request[:-1] for request in requests):
        batch = [request for request in requests if request[:-1] == common]
        answers |= zip(batch, await ask([request[-1] for request in batch], *common), strict=True)
    if new.kind == "generator":
        for reply in answers.values():
            if isinstance(reply, Fault) and reply.transient:
                raise Unavailable(f"{new.name}: {reply.reason}: {reply.detail}")
        equal = [old.text == getattr(answers[request], "text", None) for request, old in requests.items()]
        return AdoptionCheck(new.kind, run, len(requests), float(np.mean(equal)), 0.0)
    old, now = (np.array([values[r] for r in requests], np.float32) for values in (requests, answers))
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
    """Returns the share of pairs that both models order alike, or 1 if there are no pairs. Each element of
    `rows` holds two arrays: the original's and the new model's scores of the same things. Pairs with equal
    original scores do not count.

    >>> round(_agreement([(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))]), 2)
    0.67
    """
    alike = pairs = 0
    for old, new in rows:
        a, b = (np.sign(x[:, None] - x[None, :]) for x in (old, new))
        alike, pairs = alike + int(((a == b) & (a > 0)).sum()), pairs + int((a > 0).sum())
    return alike / pairs if pairs else 1.0
