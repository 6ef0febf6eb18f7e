"""Chats, sampling and replies of language models as plain values, the contract of generators, and prices.

Chats and sampling are hashable and have a stable form, so a reply can be cached by them. Prices are in no
digest; one that is not given is not 0: money is then not known, and what it leaves out is named. Knows the
records alone; an engine, an endpoint and a scripted fake keep the same contract.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from raypipe.core.records import Fault

MessageRole: TypeAlias = Literal["system", "user", "assistant"]
Finish: TypeAlias = Literal["stop", "length"]

STEP = "generate"
"""The step that a generator's faults name; a step that knows its name in the recipe puts that there."""


@dataclass(frozen=True, slots=True)
class Message:
    """A turn of a chat."""

    role: MessageRole
    content: str  # plain text: what looks like a template's token in it never becomes one


Chat: TypeAlias = tuple[Message, ...]
Chats: TypeAlias = Sequence[Chat]

Alone: TypeAlias = Callable[[], None]
"""Called by an engine when a call begins that runs alone."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The reply is one of these, to the letter."""

    options: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.options or "" in self.options or len(set(self.options)) != len(self.options):
            raise ValueError(f"choice: expected distinct options with text, found {self.options!r}")


@dataclass(frozen=True, slots=True)
class Regex:
    """The reply matches this from its first to its last character."""

    pattern: str


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The reply is JSON that this schema allows, without white space between its parts."""

    text: str  # the schema, as JSON text: its bytes are its identity


@dataclass(frozen=True, slots=True)
class Grammar:
    """The reply is a sentence of this grammar, whose first rule is `start`."""

    text: str  # Lark's notation


Constraint: TypeAlias = Choice | Regex | JsonSchema | Grammar


REPEATED = (4, 64)
"""Tokens of a text whose repetition ends a reply, where that is asked for (`Sampling.repeats`): from 4 on, as
digits and blanks repeat in right answers; 64 are two or three sentences."""
_RANGES: Mapping[str, tuple[float, float]] = {
    "max_tokens": (1, math.inf),
    "temperature": (0, 2),
    "top_p": (0.001, 1),
    "seed": (0, 2**31 - 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings by which a reply is drawn. All of it is identity."""

    max_tokens: int  # of the reply, in the model's own tokens
    temperature: float = 0.0  # 0: the most probable token each time
    top_p: float = 1.0  # 0..1: share of probability that is drawn from
    seed: int = 0  # of the draw, set again for each chat: a reply does not depend on its neighbours
    frequency_penalty: float = 0.0  # -2..2
    presence_penalty: float = 0.0  # -2..2
    stop: tuple[str, ...] = ()  # the reply ends before the first of these
    logprobs: bool = False  # whether `Generated.logprob` is wanted
    constraint: Constraint | None = None
    repeats: int = field(default=0, metadata={"added": True})  # `digests.ADDED`
    """The reply is cut where a text (of REPEATED tokens) stands this often in a row; 0: it is not."""

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty"):
            object.__setattr__(self, name, float(getattr(self, name)))  # 0 and 0.0 are one identity
        for name, (low, high) in _RANGES.items():
            if not low <= (value := getattr(self, name)) <= high:  # NaN is within nothing
                raise ValueError(f"{name}: expected {low} to {high}, found {value}")
        if self.repeats and not 2 <= self.repeats <= 100:
            raise ValueError(f"repeats: expected 0, or 2 to 100, found {self.repeats}")
        if "" in self.stop:
            raise ValueError("stop: expected texts, found an empty one, which would end every reply at once")
        if 0 < self.temperature < 0.01:
            raise ValueError(
                f"temperature: expected 0 or at least 0.01, found {self.temperature}: engines would raise it"
            )


@dataclass(frozen=True, slots=True)
class Generated:
    text: str  # never "": a model that says nothing is a fault
    finish: Finish  # stop: it ended by itself, at a stop text or at its constraint's end; length: it was cut
    prompt_tokens: int  # of the rendered chat
    cached_tokens: int  # of these, how many were not computed again; 0 where an endpoint does not say
    generated_tokens: int  # of the reply
    logprob: float | None = None  # sum over the reply's tokens, after constraint, temperature and top_p


Replies: TypeAlias = list[Generated | Fault]
"""A reply for each chat, in order."""

ReplyPieces: TypeAlias = AsyncIterator[str | Generated | Fault]
"""The text of a reply piece by piece, then the whole reply or its fault."""


class Generator(Protocol):
    """Replies to chats, in their order; each row has a reply or a fault of its own.

    `adapter` names LoRA weights that ride on the model; None is the model itself. Any number of calls may run
    at once. Raises ConfError for what no row can get: an unknown adapter, a constraint that does not compile.
    """

    async def __call__(self, chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies: ...


MILLION = 1_000_000
HOUR_S = 3600.0
JUDGE = "judge"
"""In the place of a step: the model that judges answers."""


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """US dollars per million tokens of one language model."""

    prompt: float
    reply: float
    cached: float | None = None  # of prompt tokens that a prefix cache had; None: as `prompt`

    def __post_init__(self) -> None:
        if min(self.prompt, self.reply, self.cached or 0) < 0:
            raise ValueError("usd_per_mtok: expected no price below 0")

    def usd(self, prompt: float, cached: float, generated: float) -> float:
        """Price of some tokens. `cached` are among those of the prompt.

        >>> TokenPrice(1.0, 4.0, 0.5).usd(2_000_000, 1_000_000, 500_000)
        3.5
        """
        of_cache = self.prompt if self.cached is None else self.cached
        return ((prompt - cached) * self.prompt + cached * of_cache + generated * self.reply) / MILLION

    def in_batches(self) -> TokenPrice:
        """The price of chats that are sent in files: half, at every provider that has a batch API."""
        cached = None if self.cached is None else self.cached / 2
        return TokenPrice(self.prompt / 2, self.reply / 2, cached)

    def dearest(self) -> float:
        """Price of a token, whatever it is."""
        return max(self.usd(1, 0, 0), self.usd(1, 1, 0), self.usd(0, 0, 1))


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a run of a recipe on a cluster, as far as its files say."""

    tokens: Mapping[str, TokenPrice] = field(default_factory=dict)  # step -> price of its language model
    machines: float | None = None  # US dollars per hour of all machines together; None: some have no price
    actors: Mapping[str, int] = field(default_factory=dict)  # step -> processes that do it at a time
    gpus: Mapping[str, float] = field(default_factory=dict)  # step -> GPUs held while it runs
    unpriced: tuple[str, ...] = ()  # what has no price: machines, and models behind endpoints

    @property
    def known(self) -> bool:
        return bool(self.tokens) or self.machines is not None


NO_PRICES = Prices()
