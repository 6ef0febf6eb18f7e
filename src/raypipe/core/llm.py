"""Chats, sampling and replies of language models as plain values, the contract of generators, and prices.

Chats and sampling are hashable and have a canonical form, by which replies are cached. Prices are in no
digest. A missing price is not 0: the total is then unknown, and the parts without a price are named.
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
"""Step name in the faults that a generator returns. The calling step puts its own name in its place."""


@dataclass(frozen=True, slots=True)
class Message:
    role: MessageRole
    content: str  # plain text: marks of a chat template in it are read as text


Chat: TypeAlias = tuple[Message, ...]
Chats: TypeAlias = Sequence[Chat]

Alone: TypeAlias = Callable[[], None]
"""Function that an engine calls when it begins a call that must run alone, without concurrent calls."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Constraint: the reply equals one of these options."""

    options: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.options or "" in self.options or len(set(self.options)) != len(self.options):
            raise ValueError(f"choice: expected distinct options with text, found {self.options!r}")


@dataclass(frozen=True, slots=True)
class Regex:
    """Constraint: the whole reply matches this pattern."""

    pattern: str


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """Constraint: the reply is JSON by this schema, without white space between its parts."""

    text: str  # the schema, as JSON text: its bytes are its identity


@dataclass(frozen=True, slots=True)
class Grammar:
    """Constraint: the reply is a sentence of this grammar, whose first rule is `start`."""

    text: str  # Lark's notation


Constraint: TypeAlias = Choice | Regex | JsonSchema | Grammar


REPEATED = (4, 64)
"""Fewest and most tokens of a text that ends a reply when it repeats (`Sampling.repeats`). The least is 4,
because digits and blanks repeat in right answers; 64 tokens are two or three sentences."""
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
    """Settings by which a reply is drawn. All of them are part of the key of a cached reply."""

    max_tokens: int  # most tokens of the reply, in the model's own tokens
    temperature: float = 0.0  # 0: the most probable token each time
    top_p: float = 1.0  # 0..1: share of the probability to draw from
    seed: int = 0  # seed of the draw, reset for each chat: a reply does not depend on its neighbours
    frequency_penalty: float = 0.0  # -2..2
    presence_penalty: float = 0.0  # -2..2
    stop: tuple[str, ...] = ()  # the reply ends before the first of these texts
    logprobs: bool = False  # True: `Generated.logprob` is set
    constraint: Constraint | None = None
    repeats: int = field(default=0, metadata={"added": True})  # `digests.ADDED`
    """A reply is cut once a text of REPEATED tokens occurs this often in a row; 0: never."""

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty"):
            object.__setattr__(self, name, float(getattr(self, name)))  # 0 and 0.0 are one identity
        for name, (low, high) in _RANGES.items():
            if not low <= (value := getattr(self, name)) <= high:  # also refuses NaN
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
    text: str  # never "": an empty reply is a Fault instead
    finish: Finish  # stop: the model, a stop text or the constraint ended it; length: a limit cut it
    prompt_tokens: int  # tokens of the rendered chat
    cached_tokens: int  # prompt tokens from a prefix cache; 0 also if an endpoint gives no count
    generated_tokens: int  # tokens of the reply
    logprob: float | None = None  # sum over the reply's tokens, after constraint, temperature and top_p


Replies: TypeAlias = list[Generated | Fault]
"""A reply or fault for each chat, in order."""

ReplyPieces: TypeAlias = AsyncIterator[str | Generated | Fault]
"""Pieces of a reply's text, then the whole reply or its fault."""


class Generator(Protocol):
    """A language model that replies to chats in order. Each chat gets one reply or one fault.

    `adapter` names the LoRA weights to apply; None means the model itself. Calls may run concurrently. Raises
    ConfError if no chat can be served: the adapter is unknown, or the constraint does not compile.
    """

    async def __call__(self, chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies: ...


MILLION = 1_000_000
HOUR_S = 3600.0
JUDGE = "judge"
"""Name that stands for the model that judges answers, where a step's name stands for the step's model."""


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Prices of one language model, in US dollars per million tokens."""

    prompt: float
    reply: float
    cached: float | None = None  # price of prompt tokens in a prefix cache; None: as `prompt`

    def __post_init__(self) -> None:
        if min(self.prompt, self.reply, self.cached or 0) < 0:
            raise ValueError("usd_per_mtok: expected no price below 0")

    def usd(self, prompt: float, cached: float, generated: float) -> float:
        """Returns the price of these numbers of tokens, in US dollars. `cached` tokens are part of `prompt`.

        >>> TokenPrice(1.0, 4.0, 0.5).usd(2_000_000, 1_000_000, 500_000)
        3.5
        """
        of_cache = self.prompt if self.cached is None else self.cached
        return ((prompt - cached) * self.prompt + cached * of_cache + generated * self.reply) / MILLION

    def in_batches(self) -> TokenPrice:
        """Returns half of these prices: for chats sent in files, at every provider with a batch API."""
        cached = None if self.cached is None else self.cached / 2
        return TokenPrice(self.prompt / 2, self.reply / 2, cached)

    def each(self) -> tuple[float, float, float]:
        """Returns the price in US dollars of one prompt token, one cached prompt token, one reply token."""
        return self.usd(1, 0, 0), self.usd(1, 1, 0), self.usd(0, 0, 1)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a recipe's run on a cluster, as far as the configuration files give them."""

    tokens: Mapping[str, TokenPrice] = field(default_factory=dict)  # step or JUDGE -> its model's prices
    machines: float | None = None  # US dollars per hour of all machines together; None: some have no price
    actors: Mapping[str, int] = field(default_factory=dict)  # step -> processes that run it at the same time
    gpus: Mapping[str, float] = field(default_factory=dict)  # step -> GPUs held while it runs
    unpriced: tuple[str, ...] = ()  # parts without a price: machines, and models behind endpoints

    @property
    def known(self) -> bool:
        return bool(self.tokens) or self.machines is not None


NO_PRICES = Prices()
