"""Captured answers and what users said of them, as an endpoint keeps them in its store.

The id of an answer is signed with a secret of the store, so any gateway knows without a look-up whether an
endpoint of this store gave it, and when. Knows records and small files; runs nothing.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import Literal, TypeAlias

from raypipe.core.records import CAPTURED_ID, Citation, Question, Source, Turn, digest
from raypipe.store import Store, StoreError
from raypipe.store.files import CAPTURE_SECRET, CAPTURED, FEEDBACK
from raypipe.store.lease import claim, claimed
from raypipe.store.segments import read_lines, segment_names

FORMAT = 1
DRAWN_CHARS, MAC_CHARS = 12, 16  # hex digits of an id: 48 bits that are drawn, 64 bits that sign them
SECRET_BYTES = 32

Said: TypeAlias = Literal["right", "wrong"]


@dataclass(frozen=True, slots=True)
class CapturedQuote:
    """A quote of an answer."""

    source: str  # source id
    start: int  # [start, end) in the source's parsed text
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class CapturedAnswer:
    """A question with its evidence and its answer."""

    format: int
    answer_id: str
    at: float  # when it was answered, in seconds since the epoch
    release: str | None  # None: a named recipe answered
    recipe: str  # digest
    id: str  # of the question: the stored one's, or a digest of its text; "": its text was redacted
    query: str
    body: str
    asked_at: str
    citations: tuple[Citation, ...] | None  # what was searched, after filters; None: the whole store
    sources: tuple[Source, ...]  # the request's own documents; those of the store are there
    own: bool  # it was asked over documents of its own
    answer: str
    outcome: str
    confidence: float | None
    degraded: tuple[str, ...]  # stages that were omitted
    quotes: tuple[CapturedQuote, ...]
    found: tuple[str, ...]  # ids of the sources of its passages: the answer may rest on each of them
    where: str = ""  # condition on the fields of what was searched; "": none
    turns: tuple[Turn, ...] = ()  # earlier ones of its conversation

    def question(self, id: str) -> Question:
        """The question that was asked, under an id."""
        cited = self.citations
        if cited is not None:
            cited = tuple(replace(c, question=id) for c in cited)
        return Question(id, self.query, self.body, self.asked_at, cited, where=self.where, turns=self.turns)

    def rests_on(self) -> tuple[list[str], list[str]]:
        """The addresses and the ids of sources that the answer may rest on."""
        cited = self.citations or ()
        used = (*self.found, *(q.source for q in self.quotes), *(s.id for s in self.sources))
        return [c.url for c in cited], [*used, *(s for c in cited for s in c.sources())]

    def own_id(self) -> str:
        """Names the question with its evidence: the same again is the same question."""
        seen = "" if self.citations is None else json.dumps([astuple(c)[1:] for c in self.citations])
        evidence = str(self.citations is None), seen, *([self.where] if self.where else [])
        said = (part for t in self.turns for part in (t.role, t.text))
        return CAPTURED_ID + digest(self.query, self.body, self.asked_at, *evidence, *said)


@dataclass(frozen=True, slots=True)
class Feedback:
    """A user's verdict on one answer."""

    format: int
    answer_id: str
    at: float  # seconds since the epoch
    verdict: Said | None  # None: only a text was given
    text: str | None  # the right answer, in the user's words; None: not given


class AnswerIds:
    """Draws and checks ids of answers: `seconds-drawn-mac` in hex, without a dash. The signature is over the
    name of the key's filter, too: an id that another key sends is one that was never drawn."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def draw(self, now: float, asker: str) -> str:
        """Draws an id that no other answer has, for the key that asked."""
        head = f"{int(now):08x}{secrets.token_hex(DRAWN_CHARS // 2)}"
        return head + self._mac(head, asker)

    def given_at(self, id: str, asker: str) -> float | None:
        """Returns when the answer was given, in seconds since the epoch; None for an id that was not drawn
        here for this key."""
        head, mac = id[:-MAC_CHARS], id[-MAC_CHARS:]
        if len(id) != 8 + DRAWN_CHARS + MAC_CHARS or not id.isascii():
            return None
        return float(int(head[:8], 16)) if hmac.compare_digest(self._mac(head, asker), mac) else None

    def _mac(self, head: str, asker: str) -> str:
        return hmac.digest(self._secret, f"{head}{asker}".encode(), "sha256").hex()[:MAC_CHARS]


def share_of(answer_id: str) -> float:
    """Returns where a drawn id lies between 0 and 1: below the rate of a capture, it is captured."""
    return float(int(answer_id[8 : 8 + DRAWN_CHARS], 16) / 16**DRAWN_CHARS)


def answer_ids(store: Store) -> AnswerIds:
    """Ids signed with the store's secret, which the first call makes. Raises StoreError where the store
    cannot be written."""
    if claimed(store.files, CAPTURE_SECRET) is None:  # of several gateways that start at once, one makes it
        claim(store.files, CAPTURE_SECRET, secrets.token_bytes(SECRET_BYTES))
    secret = claimed(store.files, CAPTURE_SECRET)
    if secret is None or len(secret) != SECRET_BYTES:
        raise StoreError(
            f"{store.uri}/{CAPTURE_SECRET}: expected {SECRET_BYTES} bytes that raypipe wrote. Remove the "
            "file; feedback for earlier answers is refused then"
        )
    return AnswerIds(secret)


def captured_answers(store: Store, since: float) -> Iterator[CapturedAnswer]:
    """The answers given at or after `since` (seconds since the epoch), in the order they were written."""
    names = segment_names(store.files, CAPTURED, since)
    found = read_lines(store, CAPTURED, names, CapturedAnswer, FORMAT)
    return (answer for answer in found if answer.at >= since)


def feedback_since(store: Store, since: float) -> dict[str, list[Feedback]]:
    """Answer id -> what was said of it, the first first."""
    found: dict[str, list[Feedback]] = {}
    names = segment_names(store.files, FEEDBACK, since)
    for said in read_lines(store, FEEDBACK, names, Feedback, FORMAT):
        found.setdefault(said.answer_id, []).append(said)
    return found


def since_days(days: float, now: float | None = None) -> float:
    """The time that many days ago, in seconds since the epoch."""
    return (time.time() if now is None else now) - days * 86400
