"""Models without weights, for tests and large trial runs.

The embedder hashes a bag of words, the reranker compares two sets of words, the tokenizer splits at white
space. Their numbers are the same in every process. A changed formula needs a higher version in
`catalog.FORMULA`, because this version is the identity of the model. The generator builds a reply from the
words of its chat. It obeys constraints, max_tokens and stop texts, returns faults for prompts that are too
long, and counts tokens and cached tokens as an engine would.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from raypipe.core.errors import ConfError
from raypipe.core.llm import (
    STEP,
    Chat,
    Chats,
    Choice,
    Constraint,
    Generated,
    Grammar,
    JsonSchema,
    Regex,
    Replies,
    Sampling,
)
from raypipe.core.protocols import Role
from raypipe.core.records import Fault, Span

_WORD = re.compile(r"\w+")
_NO_WORDS = "\x00"  # the only word of a text without words, so that its vector is a unit row too


@lru_cache(maxsize=1 << 16)  # holds a vocabulary; 12 MB when full
def _hash(word: str) -> int:
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower()) or [_NO_WORDS]


class HashEmbedder:
    """An embedder by word hashes: each word adds +1 or -1 to one of `dim` buckets. It ignores roles."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def embed(self, texts: Sequence[str], role: Role) -> np.ndarray:
        out = np.zeros((len(texts), self._dim), np.float32)  # (texts, dim) float32, unit rows
        for row, text in zip(out, texts, strict=True):
            hashes = np.fromiter((_hash(w) for w in _words(text)), np.uint64)
            buckets, signs = (hashes >> np.uint64(1)) % np.uint64(self._dim), hashes & np.uint64(1)
            np.add.at(row, buckets, 1 - 2 * signs.astype(np.float32))
            norm = float(np.linalg.norm(row))
            if norm == 0:  # words of opposite sign cancelled out
                row[_hash(_NO_WORDS) % self._dim] = norm = 1.0
            row /= norm
        return out


class OverlapReranker:
    """A reranker that counts common words. The score is the number of distinct words in both texts, divided
    by the geometric mean of the numbers of distinct words in each text: 0 to 1."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        sets = {text: frozenset(_words(text)) for pair in pairs for text in pair}
        scores = [len(sets[q] & sets[p]) / (len(sets[q]) * len(sets[p])) ** 0.5 for q, p in pairs]
        return np.array(scores, np.float32)


def whitespace(text: str) -> list[Span]:
    """Returns the span (start, end) of each word. White space separates words."""
    return [m.span() for m in re.finditer(r"\S+", text)]


def _bag(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


Script = Callable[[Chat, Sampling, str | None], str | Fault]
"""chat, sampling, adapter -> the reply before it is cut, or a fault."""

_TOKEN = re.compile(r"(?<!\s)\s*\S+")


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    chat: Chat
    sampling: Sampling
    adapter: str | None


def echo(chat: Chat, sampling: Sampling, adapter: str | None) -> str:
    """Replies with the line of the chat that shares most words with the chat's last line.

    With an adapter, its name precedes the line. A constraint changes the reply. For a choice, the reply is
    the option that shares most words with the chat. For a JSON schema, it is the first value that the schema
    allows. For a grammar, the two lines below each line of the chat are tried, the most similar to the
    question first, and the first allowed line is the reply. Raises ConfError for other constraints, and if no
    line is allowed."""
    *before, last = [line for m in chat for line in m.content.splitlines() if line.strip()] or [""]
    asked = _bag(last)
    constraint = sampling.constraint
    if isinstance(constraint, Choice):
        text = " ".join(m.content for m in chat)
        return max(constraint.options, key=lambda option: len(_bag(option) & _bag(text)))
    if isinstance(constraint, JsonSchema):
        return json.dumps(_instance(json.loads(constraint.text)), separators=(",", ":"))
    if isinstance(constraint, Grammar) and before:
        # Such a prompt ends with the question and one more line; the reply is below the most similar line.
        asked = _bag(before[-1])
        order = sorted(range(1, len(before)), key=lambda i: (-len(_bag(before[i - 1]) & asked), i))
        for line in (x.strip() for i in order for x in before[i : i + 2]):
            if _allowed(line, constraint):
                return line
    if constraint is not None:
        raise ConfError(f"scripted: {type(constraint).__name__} needs a script that knows its replies")
    best = max(before, key=lambda line: len(_bag(line) & asked), default=last)
    return f"{adapter}: {best.strip()}" if adapter else best.strip()


class Scripted:
    """A generator whose replies come from the function `script`; `asked` lists the calls in order."""

    def __init__(
        self, script: Script = echo, adapters: Sequence[str] = (), max_model_len: int = 4096
    ) -> None:
        self._script, self._adapters, self._max_model_len = script, tuple(adapters), max_model_len
        self._seen: set[tuple[str | None, str]] = set()
        self.asked: list[ScriptedCall] = []

    async def generate(self, chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        """Replies to chats. Raises ConfError for an unknown adapter, ValueError if a constraint is broken."""
        if adapter is not None and adapter not in self._adapters:
            known = ", ".join(self._adapters) or "none"
            raise ConfError(f"scripted: no adapter named {adapter!r}; it has {known}")
        self.asked += [ScriptedCall(chat, sampling, adapter) for chat in chats]
        return [self._one(chat, sampling, adapter) for chat in chats]

    def _one(self, chat: Chat, sampling: Sampling, adapter: str | None) -> Generated | Fault:
        prompt = "\n".join(f"{m.role}: {m.content}" for m in chat)
        tokens = _TOKEN.findall(prompt)
        if len(tokens) + sampling.max_tokens > self._max_model_len:
            found = f"{len(tokens)} and {sampling.max_tokens}"
            detail = f"expected at most {self._max_model_len} tokens, found {found}"
            return Fault(STEP, "prompt_too_long", detail, transient=False)
        cached = self._cached(tokens, adapter)
        text = self._script(chat, sampling, adapter)
        if isinstance(text, Fault):
            return text
        if sampling.constraint is not None and not _allowed(text, sampling.constraint):
            raise ValueError(f"the script's reply {text!r} breaks {sampling.constraint}")
        stops = [at for stop in sampling.stop if (at := text.find(stop)) >= 0]
        words = _TOKEN.findall(text[: min(stops, default=len(text))])
        kept = words[: sampling.max_tokens]
        if not kept:
            return Fault(STEP, "empty_reply", "the model ended its reply before any text", transient=False)
        return Generated(
            text="".join(kept),
            finish="stop" if len(kept) == len(words) else "length",
            prompt_tokens=len(tokens),
            cached_tokens=cached,
            generated_tokens=len(kept),
            logprob=-float(len(kept)) if sampling.logprobs else None,
        )

    def _cached(self, tokens: list[str], adapter: str | None, block: int = 16) -> int:
        """Counts the prompt tokens that a prefix cache would hold: the leading blocks of `block` tokens that
        an earlier prompt for this adapter had, too."""
        cached = 0
        for end in range(block, len(tokens), block):
            key = (adapter, "".join(tokens[:end]))
            if key in self._seen:
                cached = end
            self._seen.add(key)
        return cached


def _allowed(text: str, constraint: Constraint) -> bool:
    match constraint:
        case Choice(options):
            return text in options
        case Regex(pattern):
            return re.fullmatch(pattern, text) is not None
        case JsonSchema(schema):
            import jsonschema  # type: ignore[import-untyped]

            try:
                tree = json.loads(text)
            except ValueError:
                return False
            return bool(jsonschema.Draft202012Validator(json.loads(schema)).is_valid(tree))
        case Grammar(grammar):
            import lark  # only for grammars

            try:
                lark.Lark(grammar, parser="earley").parse(text)
            except lark.exceptions.UnexpectedInput:
                return False
            return True


def _instance(schema: dict[str, object]) -> object:
    """Returns the first value that a simple schema allows. Raises ConfError for other schemas."""
    match schema:
        case {"const": value} | {"enum": [value, *_]}:
            return value
        case {"type": "object", "properties": dict(parts)}:
            return {name: _instance(part) for name, part in parts.items()}
        case {"type": "array", "items": dict(item)}:
            count = schema.get("minItems", 0)
            return [_instance(item)] * (count if isinstance(count, int) else 0)
        case {"type": "boolean"}:
            return False
        case {"type": "integer" | "number"}:
            return schema.get("minimum", 0)
        case {"type": "string"}:
            least = schema.get("minLength", 1)
            return "a" * (least if isinstance(least, int) else 1)
    raise ConfError(f"scripted: no instance of {schema} is known; give a script")
