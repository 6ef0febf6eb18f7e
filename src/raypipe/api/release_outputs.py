"""What `--json` prints of releases, and of what is taken out of a store."""

from __future__ import annotations

from typing import Literal

from pydantic import with_config
from typing_extensions import TypedDict

from raypipe.api.run_outputs import (
    STRICT,
)
from raypipe.api.usage import TenantUsage
from raypipe.runs.forget.records import Holding
from raypipe.runs.prune import Removal
from raypipe.runs.trial_verdict import TrialReport


@with_config(STRICT)
class _LeadMeasure(TypedDict):
    name: str
    mean: float | None
    scored: int
    of: int


@with_config(STRICT)
class _ReleaseLine(TypedDict):
    id: str
    live: bool
    pointers: list[str]  # live, live@NAME: those that name it
    run: str
    recipe: str
    digest: str
    score: float | None
    scored: int  # questions that the score rests on
    questions: int
    measure: _LeadMeasure | None  # that the report begins with; null: released by a raypipe that had none
    seen: int  # scored questions that a fit of the recipe has seen
    gates: list[str]
    promoted: float  # seconds since the epoch


@with_config(STRICT)
class Releases(TypedDict):
    """`releases --json`, oldest first."""

    format: Literal[2]
    releases: list[_ReleaseLine]


@with_config(STRICT)
class LiveRelease(_ReleaseLine):
    """`promote --json` and `rollback --json`."""

    format: Literal[2]
    store: str  # URI of the store in which it is live


@with_config(STRICT)
class Trials(TypedDict):
    """`trial --json` and `promote --canary --json`."""

    format: Literal[2]
    store: str  # URI
    running: list[TrialReport]  # the canary, then the shadow
    ended: TrialReport | None  # the last; null: none has


@with_config(STRICT)
class Prune(TypedDict):
    """`prune --json`."""

    format: Literal[2]
    dry_run: bool
    removed: list[Removal]


@with_config(STRICT)
class Usage(TypedDict):
    """`usage --json`."""

    format: Literal[2]
    tenants: list[TenantUsage]


@with_config(STRICT)
class Forget(TypedDict):
    """`forget --json`."""

    format: Literal[2]
    store: str  # URI
    target: Literal["url", "document", "source", "question"]
    name: str  # the url, or its id
    reason: str  # that its tombstone gives
    tombstone: str  # id
    dry_run: bool
    finished: bool  # a forget that was killed was finished
    holdings: list[Holding]
