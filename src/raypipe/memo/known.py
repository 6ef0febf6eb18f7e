"""What the memo of a store knows, asked without asking any model: for plans, and for the story of one row.

Knows how keys are made (`memo.remembering`) and where values lie (`memo.disk`); changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raypipe.identity import model_identity
from raypipe.memo import Memo, MemoTable
from raypipe.records import digest
from raypipe.step import Model, Role
from raypipe.store.database import Store, missing

_FOLDER = "_memo"  # of values that no table has yet


def vector_key(model: Model, role: Role, text: str) -> str:
    """The key under which a text's vector is remembered."""
    return digest(model_identity(model), role, text)


def score_key(model: Model, query: str, passage: str) -> str:
    """The key under which a pair's score is remembered."""
    return digest(model_identity(model), query, passage)


def known(store: Store, table: MemoTable, keys: Sequence[str], version: int | None = None) -> set[str]:
    """Which of the keys have a value: in the memo's table, or in a file that waits to be folded into it.

    With `version`, those that the table had then; 0 is before there was a table.
    """
    if version == 0 or not keys:
        return set()
    distinct = list(dict.fromkeys(keys))
    found = set(distinct)
    if store.has(table.name):
        found -= set(missing(store.dataset(table.name, version), "key", distinct))
    else:
        found = set()
    return found if version is not None else found | _waiting(store, table, set(distinct) - found)


def _waiting(store: Store, table: MemoTable, keys: set[str]) -> set[str]:
    found: set[str] = set()
    for name in store.files.names(f"{_FOLDER}/{table.name}") if keys else ():
        content = store.files.read(f"{_FOLDER}/{table.name}/{name}")
        if content is not None and digest(content) == name.removesuffix(".arrow"):
            found |= keys & set(pa.ipc.open_file(content).read_all()["key"].to_pylist())
    return found


@dataclass(slots=True)
class Asked:
    """One call of a step: what it wanted to know, and of which map."""

    table: MemoTable
    keys: list[str]
    known: list[bool]  # by the memo


class Listening:
    """A memo that notes what it is asked for, and keeps nothing (`memo.Memo`)."""

    def __init__(self, memo: Memo) -> None:
        self._memo = memo
        self.asked: list[Asked] = []

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        found, values = await self._memo.get_many(table, keys)
        self.asked.append(Asked(table, list(keys), found.tolist()))
        return found, values

    async def put_many(self, table: MemoTable, keys: Sequence[str], values: np.ndarray) -> None:
        return
