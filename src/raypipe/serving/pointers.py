"""Several named pointers to releases over one set of models: `live`, and `live@NAME` of tenants."""

from __future__ import annotations

from collections.abc import Sequence

from raypipe.core.protocols import Model
from raypipe.recipes.deadlines import DegradePolicy
from raypipe.serving.answerer import Answerer
from raypipe.serving.release_follower import CLOSE_AFTER_S, ReleaseFollower
from raypipe.serving.shared_kit import ClosingKit


class ReleaseFollowers:
    """Follows each pointer that is asked. Models stay loaded while a release of any of them names them."""

    def __init__(
        self,
        kit: ClosingKit,
        store: str,
        policy: DegradePolicy | None = None,
        close_after_s: float = CLOSE_AFTER_S,
    ) -> None:
        self._kit, self._store, self._policy = kit, store, policy
        self._close_after_s = close_after_s
        self._followers: dict[str, ReleaseFollower] = {}

    async def current(self, pointer: str = "live") -> Answerer:
        """The answerer of the release that a pointer names. Raises NotReady where it names none."""
        if pointer not in self._followers:
            self._followers[pointer] = ReleaseFollower(
                self._kit, self._store, self._policy, self._close_after_s, pointer, self._models
            )
        return await self._followers[pointer].current()

    def _models(self) -> Sequence[Model]:
        """The models of the releases that answer now, of all pointers."""
        return [m for f in self._followers.values() for m in f.models()]
