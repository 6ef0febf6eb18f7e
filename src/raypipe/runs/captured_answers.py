"""Captured answers of an endpoint, and users' feedback on the answers, both kept in the endpoint's store.

The id of an answer holds its time and is signed with a secret of the store. Any gateway can therefore verify
an id without a look-up. This module makes the ids, and reads the records; the endpoint writes them.
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
DRAWN_CHARS, MAC_CHARS = 12, 16  # hex digits in an id: 48 random bits, 64 bits of signature
SECRET_BYTES = 32

UserVerdict: TypeAlias = Literal["right", "wrong"]


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
    at: float  # time of the answer, in seconds since the epoch
    release: str | None  # id; None: the endpoint serves a named recipe
    recipe: str  # digest
    id: str  # of the question: a stored one's id, or a digest of its text; "": the text was redacted
    query: str
    body: str
    asked_at: str
    citations: tuple[Citation, ...] | None  # searched ones, after filters; None: the whole store
    sources: tuple[Source, ...]  # documents of the request itself; stored sources are not repeated
    own: bool  # True: the question was asked over documents of the request
    answer: str
    outcome: str
    confidence: float | None
    degraded: tuple[str, ...]  # stages that were omitted
    quotes: tuple[CapturedQuote, ...]
    found: tuple[str, ...]  # ids of the sources of the passages found: the answer may rest on each of them
    where: str = ""  # condition on fields of the searched sources; "": none
    turns: tuple[Turn, ...] = ()  # earlier turns of the conversation

    def question(self, id: str) -> Question:
        """Returns the question that was answered, under the id `id`."""
        cited = self.citations and tuple(replace(c, question=id) for c in self.citations)
        return Question(id, self.query, self.body, self.asked_at, cited, where=self.where, turns=self.turns)

    def rests_on(self) -> tuple[list[str], list[str]]:
        """Returns the addresses, and the ids of sources, that the answer may rest on."""
        cited = self.citations or ()
        used = (*self.found, *(q.source for q in self.quotes), *(s.id for s in self.sources))
        return [c.url for c in cited], [*used, *(s for c in cited for s in c.sources())]

    def own_id(self) -> str:
        """Returns an id made of the question and its evidence. Equal questions with equal evidence get equal
        ids. Equal questions over the whole store get equal ids even if the store has changed in between."""
        seen = "" if self.citations is None else json.dumps([astuple(c)[1:] for c in self.citations])
        evidence = str(self.citations is None), seen, *([self.where] if self.where else [])
        turns = (part for t in self.turns for part in (t.role, t.text))
        return CAPTURED_ID + digest(self.query, self.body, self.asked_at, *evidence, *turns)


@dataclass(frozen=True, slots=True)
class Feedback:
    """A user's verdict on one answer."""

    format: int
    answer_id: str
    at: float  # seconds since the epoch
    verdict: UserVerdict | None  # None: the user gave only a text
    text: str | None  # the right answer in the user's words; None: not given


class AnswerIds:
    """A signer of answer ids. An id is the time in seconds, a random number and a signature, all in hex. The
    signature also covers the name of the API key's filter, so a key with another filter cannot use the id."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def draw(self, now: float, asker: str) -> str:
        """Makes a random answer id. `now` is in seconds since the epoch; `asker` names the key's filter."""
        head = f"{int(now):08x}{secrets.token_hex(DRAWN_CHARS // 2)}"
        return head + self._mac(head, asker)

    def given_at(self, id: str, asker: str) -> float | None:
        """Returns the answer's time (seconds since the epoch); None: `id` was not signed for this filter."""
        head, mac = id[:-MAC_CHARS], id[-MAC_CHARS:]
        if len(id) != 8 + DRAWN_CHARS + MAC_CHARS or not id.isascii():
            return None
        return float(int(head[:8], 16)) if hmac.compare_digest(self._mac(head, asker), mac) else None

    def _mac(self, head: str, asker: str) -> str:
        return hmac.digest(self._secret, f"{head}{asker}".encode(), "sha256").hex()[:MAC_CHARS]


def share_of(answer_id: str) -> float:
    """Maps an id to its random number in 0..1. An answer is captured if it is below the capture rate."""
    return float(int(answer_id[8 : 8 + DRAWN_CHARS], 16) / 16**DRAWN_CHARS)


def answer_ids(store: Store) -> AnswerIds:
    """Returns the signer with the store's secret (made by the first call). Raises StoreError if damaged."""
    if claimed(store.files, CAPTURE_SECRET) is None:  # if several gateways start together, one makes it
        claim(store.files, CAPTURE_SECRET, secrets.token_bytes(SECRET_BYTES))
    secret = claimed(store.files, CAPTURE_SECRET)
    if secret is None or len(secret) != SECRET_BYTES:
        raise StoreError(
            f"{store.uri}/{CAPTURE_SECRET}: expected {SECRET_BYTES} bytes that raypipe wrote. Remove the "
            "file; feedback for earlier answers is refused then"
        )
    return AnswerIds(secret)


def captured_answers(store: Store, since: float) -> Iterator[CapturedAnswer]:
    """Yields the answers given at or after `since` (seconds since the epoch), in the order of writing."""
    names = segment_names(store.files, CAPTURED, since)
    return (a for a in read_lines(store, CAPTURED, names, CapturedAnswer, FORMAT) if a.at >= since)


def feedback_since(store: Store, since: float) -> dict[str, list[Feedback]]:
    """Maps answer ids to feedback written at or after `since` (seconds since the epoch), oldest first."""
    by_answer: dict[str, list[Feedback]] = {}
    names = segment_names(store.files, FEEDBACK, since)
    for feedback in read_lines(store, FEEDBACK, names, Feedback, FORMAT):
        by_answer.setdefault(feedback.answer_id, []).append(feedback)
    return by_answer


def since_days(days: float, now: float | None = None) -> float:
    """Returns the time `days` days ago, in seconds since the epoch."""
    return (time.time() if now is None else now) - days * 86400
