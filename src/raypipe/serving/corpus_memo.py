"""A memo of which each corpus has its own part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raypipe.memo.memo import Memo, MemoTable, Values


class CorpusMemo:
    """A memo whose keys are under the name of one corpus: no other finds them (`memo.Memo`)."""

    def __init__(self, memo: Memo, corpus: str) -> None:
        self._memo, self._corpus = memo, corpus

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, Values]:
        return await self._memo.get_many(table, self._own(keys))

    async def put_many(self, table: MemoTable, keys: Sequence[str], values: Values) -> None:
        await self._memo.put_many(table, self._own(keys), values)

    def _own(self, keys: Sequence[str]) -> list[str]:
        return [f"{self._corpus}/{key}" for key in keys]
