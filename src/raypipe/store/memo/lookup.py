"""Look-ups in a store's memo (its cache of model calls) without a model call: for plans and explanations.

Depends on how keys are made (`store.memo.cached.cached`) and where values are stored (`store.memo.disk`);
writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import pyarrow as pa

from raypipe.core import arrow
from raypipe.core.errors import ConfError
from raypipe.core.index import Index
from raypipe.core.llm import Chat, Chats, Generated, Generator, Replies, Sampling
from raypipe.core.protocols import CorpusStep, ForwardingKit, Kit, Model, Step
from raypipe.core.records import Fault
from raypipe.core.references import Reference, Request
from raypipe.store.database import Store
from raypipe.store.files import MEMO
from raypipe.store.ids import missing
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import intact
from raypipe.store.memo.memo import Memo, MemoryMemo, MemoTable, Values

T = TypeVar("T")


def lookup(store: Store, table: MemoTable, keys: Sequence[str], version: int | None = None) -> set[str]:
    """Returns the keys that have a value, in the memo's table or in a cache file that is not merged yet.

    With `version`, returns the keys that the table had at that version; 0 means before the table existed.
    """
    if version == 0 or not keys:
        return set()
    distinct, found = list(dict.fromkeys(keys)), set[str]()
    if store.has(table.name):
        found = set(distinct) - set(missing(store.dataset(table.name, version), "key", distinct))
    rest = set() if version is not None else set(distinct) - found
    for name in store.files.names(f"{MEMO}/{table.name}") if rest else ():
        content = store.files.read(f"{MEMO}/{table.name}/{name}")
        if content is not None and intact(name, content):
            found |= rest & set(arrow.id_texts(arrow.rows_of(content)["key"]))
    return found


@dataclass(slots=True)
class MemoRequest:
    """A step's look-up in the memo: the table, the keys, and which keys were found."""

    table: MemoTable
    keys: list[str]
    found: list[bool]  # for each key: whether the memo had its value


class RecordingMemo:
    """A memo (`memo.Memo`) that records the look-ups in another memo, and stores nothing."""

    def __init__(self, memo: Memo) -> None:
        self._memo = memo
        self.requests: list[MemoRequest] = []

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, Values]:
        found, values = await self._memo.get_many(table, keys)
        self.requests.append(MemoRequest(table, list(keys), found.tolist()))
        return found, values

    async def put_many(self, table: MemoTable, keys: Sequence[str], values: Values) -> None:
        return


class NotCached(Exception):
    """A request whose value the memo does not hold."""


class NoReply(NotCached):
    """A request to a graph's server whose reply is not in the memo, or has expired."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class CacheOnlyKit(ForwardingKit[Kit]):
    """A kit (a step's access to models and index) whose models raise NotCached. If `cached` wraps this kit,
    cached requests are answered as usual, and only uncached ones raise."""

    def _refused(self, model: Model) -> Any:
        async def refuse(*asked: object) -> NoReturn:
            raise NotCached(model.name)

        return refuse

    embedder = reranker = generator = _refused

    def data(self, ref: Reference[T]) -> T:
        """Opens a reference's files. A request to its server raises NoReply, an embedding NotCached."""

        def silent(request: Request) -> Request:
            async def ask(path: str, body: Mapping[str, Any]) -> Any:
                raise NoReply(path)

            return ask

        return ref.through(self._kit.data(ref), silent, self.embedder)


class ChatRecorder(ForwardingKit[Kit]):
    """A kit that records the chats sent to each adapter, in order, each with its reply (None: it raised)."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(kit)
        self.calls: dict[str | None, list[tuple[Chat, Generated | Fault | None]]] = {}

    def generator(self, model: Model) -> Generator:
        generate = self._kit.generator(model)

        async def record(chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
            calls = self.calls.setdefault(adapter, [])
            first, last = len(calls), len(calls) + len(chats)
            calls += [(chat, None) for chat in chats]
            replies = await generate(chats, sampling, adapter)
            calls[first:last] = zip(chats, replies, strict=True)
            return replies

        return record


class _UnsearchedKit(CacheOnlyKit):
    def index(self) -> Index:
        class NoIndex:
            """Placeholder for an index: raises when it is used, not when it is opened."""

            def __getattr__(self, name: str) -> Any:
                raise ConfError(
                    f"index.{name}: a step whose call follows from the question alone must not search"
                )

        return cast(Index, NoIndex())


async def first_requests(
    step: Step | CorpusStep, kit: Kit, inputs: Iterable[Any]
) -> list[MemoRequest | None]:
    """Returns the first look-up in the memo that a step makes for each input, as if nothing were cached; None
    for an input without a look-up. An input is a batch of questions, or a table. Calls no model. Raises
    ConfError if the step searches the index before its first look-up."""
    recorder, requests = RecordingMemo(MemoryMemo()), list[MemoRequest | None]()
    work: Any = step.open(cached(_UnsearchedKit(kit), recorder, CallCounts()))
    for given in inputs:
        recorder.requests.clear()
        try:
            await work(given)
            requests.append(None)
        except NotCached:
            requests.append(recorder.requests[0])
    return requests


async def first_chats(step: CorpusStep, kit: Kit, table: pa.Table) -> list[Chat]:
    """Returns the chats that a corpus step sends for a table before it gets any reply. Chats that depend on a
    reply are missing. Calls no model."""
    recorder = ChatRecorder(_UnsearchedKit(kit))
    with suppress(NotCached):
        await step.open(recorder)(table)
    return [chat for calls in recorder.calls.values() for chat, _ in calls]
