"""Generation: a language model writes a text about each question; the text is parsed to a labelled reply."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from raypipe.core.digests import ADDED
from raypipe.core.index import Index
from raypipe.core.llm import Choice, Generated, Grammar, JsonSchema, Sampling
from raypipe.core.protocols import FIELDS, Ask, Bound, Kit, Model, Reach, Tokenize
from raypipe.core.records import ABSTAINED, ANSWERED, Fault, Question, Reply, Span
from raypipe.steps.field_checks import require_adapters, require_positive, require_prompt
from raypipe.steps.prompts import (
    CHARS_PER_TOKEN,
    PromptPassage,
    ask_by_adapter,
    prompt_passages,
    prompt_values,
    read_reply,
    skipping,
    with_replies,
)
from raypipe.text import replies
from raypipe.text.context import PassageLayout, characters, cite, pack
from raypipe.text.replies import Level, ParsedReply
from raypipe.text.sanitize import escape_markup, prompted_spans
from raypipe.text.template import REPLY, ByLabel, Prompt
from raypipe.text.words import require_splitter

SAMPLED = ("temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "logprobs", "repeats")
"""Fields of the step that are passed to `core.llm.Sampling` under the same names."""
ReplyKind: TypeAlias = Literal[
    "plain", "label", "certainty", "json", "confidence", "calls", "text", "keywords", "rewrite"
]


PromptContext: TypeAlias = tuple[str, tuple[tuple[str, Span, str], ...]]
"""(packed text of the context, its quotable parts: source id, span and text of each stretch of a passage)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Sends `prompt` to `model` for each question and stores the model's text as the reply `into`.

    A prompt may use text, body, asked_at, replies.NAME, the names of `fill`, and context. The context is the
    passages of `order`, packed to a budget (`text.context`), without hidden text. Text of questions, replies
    and passages is escaped (`text.sanitize`).

    `reply` selects the parser (`text.replies`) and thus the possible labels:

    - plain: answered; abstained, if the text has "i don't know"; invalid, if it has "invalid question";
    - label: one of `labels`, else `default`;
    - certainty: invalid, if the model says that the question is; the one of `labels` that the model states
      with a certainty above `certain`; else `default`;
    - json: answered; the text is the JSON object;
    - confidence: as plain, with a stated confidence; abstained, if it is below the level `confident`;
    - calls: answered, or abstained if the model states that no call fits;
    - text: answered, any text;
    - keywords: answered; the text is one line of keywords, separated by commas;
    - rewrite: answered; the text is a query that replaces the question. If the model's text is empty, longer
      than the question, unreadable or a final fault, the reply is the question, labelled kept; an error is
      recorded as its fault.

    `after`, for plain, is a mark such as "Answer:". Only the text after its last occurrence is parsed.

    A model's thoughts (`text.thoughts`) are not parsed. A text that ends inside a thought, or has nothing
    after it, is unreadable. Except for rewrite, an unreadable text gives a reply with a fault and the whole
    text. A failed call gives a reply with a fault, too. A transient fault (the engine is down) is also added
    to the question: nothing is stored, and the next run tries the question again. If the model is declared
    absent (loader: none), every reply is skipped.

    A readable reply that does not abstain gets quotes (`text.context.cite`). The first is the sentence of the
    context that shares most words with the reply, if they are enough. All shown parts of passages follow.
    """

    model: Model
    prompt: ByLabel[Prompt]  # one prompt, or one for each label of an earlier reply
    into: str
    max_tokens: int  # tokens of the reply, as the model counts; its thoughts have a further budget
    reply: ReplyKind = "plain"
    labels: tuple[str, ...] = ()  # with reply label or certainty: the classes, searched for in this order
    default: str | None = None  # label of a text that names none of `labels`; None: such a text is a fault
    after: str = ""  # with reply plain: the mark before the answer; "": the whole text is the answer
    certain: float = 90.0  # with reply certainty: the certainty that a label must exceed, 0..100
    confident: Level | None = None  # with reply confidence: lowest level that counts as an answer; None: any
    adapter: ByLabel[str | None] = field(default_factory=lambda: ByLabel(None))  # LoRA adapter; None: none
    choices: tuple[str, ...] = ()  # constraint: the reply is one of these texts
    schema: JsonSchema | None = None  # constraint: the reply is JSON that this schema allows
    grammar: Grammar | None = None  # constraint: the reply is a sentence of this grammar
    fill: Mapping[str, str | int] = field(default_factory=dict)  # constants of the prompt
    first: tuple[str, ...] = ()  # reply names: each line of an answered one is a passage, before `order`
    passages: int | None = None  # distinct passages of `order` in the context; None: all; 0: only `first`
    context_tokens: int | None = None  # budget of the context, as `tokenizer` counts it
    context_chars: int | None = None  # budget of the context in characters, instead of tokens
    tokenizer: Model | None = None  # counts the context; None: the model's own
    layout: PassageLayout = "docs"
    lower: bool = False  # passages in lower case
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logprobs: bool = False  # True: the reply carries its log-probability
    repeats: int = field(default=0, metadata=ADDED)  # a text repeated this often in a row ends it; 0: off

    version: ClassVar[int] = 5

    def __post_init__(self) -> None:
        require_prompt(self.model, self.prompt.values(), self.fill.keys() | {"context"})
        if not self.into:
            raise ValueError("into: expected the name of a reply, found none")
        self._check_reply()
        if reserved := self.fill.keys() & (FIELDS | {"context"}):
            raise ValueError(f"fill: {min(reserved)!r} is a field of a question and cannot be a constant")
        if idle := self.fill.keys() - self._variables():
            raise ValueError(f"fill: {min(idle)!r} is used by no prompt of this step")
        self._check_context()
        require_adapters(self.model, self.adapter)
        constraint = self.sampling().constraint
        if self.model.dialect == "openai":
            server = f"{self.model.name!r} is behind a server of dialect openai, which"
            advice = "If vLLM serves it, set dialect: vllm in its entry of the models file"
            if self.repeats:
                raise ValueError(f"repeats: {server} cannot cut repeating replies. {advice}")
            if not isinstance(constraint, JsonSchema | None):
                kind = type(constraint).__name__.lower()
                raise ValueError(f"model: {server} constrains only by JSON schema, not by {kind}. {advice}")

    def _check_reply(self) -> None:
        named = self.reply in ("label", "certainty")
        if named != bool(self.labels):
            raise ValueError(f"labels: expected with reply: label, and only with it; found {self.reply}")
        if self.reply == "certainty" and self.default is None:
            raise ValueError("default: expected one with reply: certainty, found none")
        for name, given, kind, fits in (
            ("default", self.default is not None, "label", named),
            ("after", bool(self.after), "plain", self.reply == "plain"),
            ("confident", self.confident is not None, "confidence", self.reply == "confidence"),
        ):
            if given and not fits:
                raise ValueError(f"{name}: expected only with reply: {kind}, found reply: {self.reply}")

    def _check_context(self) -> None:
        if self.context_tokens is not None and self.context_chars is not None:
            raise ValueError("expected context_tokens or context_chars, found both")
        if self.tokenizer is not None and self.context_tokens is None:
            raise ValueError("tokenizer: expected context_tokens with it, found none")
        require_positive(self, "context_tokens", "context_chars")
        if not self.first:
            require_positive(self, "passages")
        elif self.passages is not None and self.passages < 0:
            raise ValueError(f"passages: expected at least 0, found {self.passages}")
        given = [n for n in ("passages", "context_tokens", "context_chars") if getattr(self, n) is not None]
        given += ["first"] if self.first else []
        if given and "context" not in self._variables():
            raise ValueError(f"{given[0]}: expected a prompt that uses context, found none")
        most = self.model.max_model_len
        room = most - self.max_tokens
        if room < 1 or (self.context_tokens or 0) > room:
            found = f"{self.max_tokens} of reply and {self.context_tokens or 0} of context"
            has = f"{self.model.name!r} has room for {most} tokens of prompt and reply"
            raise ValueError(f"max_tokens: {has}; found {found}")

    def reads(self) -> frozenset[str]:
        names = self._variables() - self.fill.keys() - {"context"}
        if self.reply == "rewrite":
            names |= {"text"}
        if self._searches():
            names |= {"order", "index.text", "index.hidden"}
        return names | self.prompt.reads() | self.adapter.reads() | {REPLY + r for r in self.first}

    def writes(self) -> frozenset[str]:
        return frozenset({REPLY + self.into})

    def _variables(self) -> frozenset[str]:
        return frozenset(v for p in self.prompt.values() for v in p.variables)

    def _searches(self) -> bool:
        return "context" in self._variables() and self.passages != 0

    def sampling(self) -> Sampling:
        given = [c for c in (Choice(self.choices) if self.choices else None, self.schema, self.grammar) if c]
        if len(given) > 1:
            raise ValueError("expected at most one of choices, schema and grammar")
        return Sampling(
            max_tokens=self.max_tokens + self.model.thought_tokens,
            constraint=given[0] if given else None,
            **{name: getattr(self, name) for name in SAMPLED},
        )

    def bound(self, question: Question, reach: Reach) -> Bound:
        if self.model.absent:
            return Bound(0, reach, "never")
        plain = self.reads() <= FIELDS
        tokens, reply = self.model.max_model_len, self.sampling().max_tokens
        prompt = self._prompt_tokens(question, reach)
        return Bound(1, reach, "asking", plain, tokens=tokens, reply_tokens=reply, prompt_tokens=prompt)

    def _prompt_tokens(self, question: Question, reach: Reach) -> float:
        """Estimates the tokens of the prompt for a question, at most the model's `max_model_len`. `reach`
        bounds the passages. Returns math.inf if a prompt shows replies, since their length is unknown."""
        if any(v.startswith(REPLY) for v in self._variables()):
            return math.inf
        context = 0.0
        if "context" in self._variables():
            budget = self.context_chars or CHARS_PER_TOKEN * (self.context_tokens or math.inf)
            most = min(reach.order, math.inf if self.passages is None else self.passages)
            found = math.inf if self.first else most and most * reach.passage_chars  # 0 x inf is no number
            context = min(budget, found)
        values = (question.text, question.body, question.asked_at, *map(str, self.fill.values()))
        own = sum(map(len, values))
        fixed = max(len(p.system) + len(p.user) for p in self.prompt.values())
        return min((context + own + fixed) / CHARS_PER_TOKEN, self.model.max_model_len)

    def open(self, kit: Kit) -> Ask:
        if self.model.absent:
            return skipping(self.into)
        if self._searches():
            require_splitter()  # for quotes
        generate = kit.generator(self.model)
        index = kit.index() if self._searches() else None
        tokenize = self._counter(kit)
        renderers = {id(prompt): prompt.renderer() for prompt in self.prompt.values()}

        async def ask(questions: list[Question]) -> list[Question]:
            contexts = await self._contexts(questions, index, tokenize)
            chats = [
                renderers[id(self.prompt.of(q))](self._values(q, context))
                for q, (context, _) in zip(questions, contexts, strict=True)
            ]
            said = await ask_by_adapter(generate, questions, chats, self.sampling(), self.adapter)
            return [self._answered(q, s, c) for q, s, c in zip(questions, said, contexts, strict=True)]

        return ask

    def shown(self, kit: Kit) -> Callable[[Sequence[Question]], Awaitable[list[str]]]:
        index, tokenize = kit.index(), self._counter(kit)
        told = sorted(v.removeprefix(REPLY) for v in self._variables() if v.startswith(REPLY))

        async def show(questions: Sequence[Question]) -> list[str]:
            contexts = await self._contexts(questions, index, tokenize)
            replies = ["\n".join(q.replies[name].text for name in told) for q in questions]
            return [f"{c}\n{r}" for (c, _), r in zip(contexts, replies, strict=True)]

        return show

    def _counter(self, kit: Kit) -> Tokenize:
        return characters if self.context_tokens is None else kit.tokenizer(self.tokenizer or self.model)

    async def _contexts(
        self, questions: Sequence[Question], index: Index | None, tokenize: Tokenize
    ) -> list[PromptContext]:
        """Returns the context of each question's prompt; without an index no passages are shown."""
        if index is None:
            return [self._context(q, (), tokenize) for q in questions]
        found = await prompt_passages(index, [c for q in questions for c in q.order], self.lower)
        return [self._context(q, [found[c] for c in q.order], tokenize) for q in questions]

    def _context(
        self, question: Question, passages: Sequence[PromptPassage], tokenize: Tokenize
    ) -> PromptContext:
        """Packs the context of a prompt to the budget: the lines of the replies `first`, then the passages.
        Returns ("", ()) if the question's prompt does not use the context."""
        if "context" not in self.prompt.of(question).variables:
            return "", ()
        budget, lines = self.context_tokens or self.context_chars, self._first(question)
        most = None if self.passages is None else self.passages + len(lines)
        packed = pack([*lines, *(p.prompted for p in passages)], self.layout, budget, tokenize, most)
        of_passages = [(passages[i - len(lines)], text) for i, text in packed.shown if i >= len(lines)]
        stretches = tuple(
            (p.source, span, said)
            for p, text in of_passages
            for span, said in prompted_spans(p.text, p.span, p.hidden, text, self.lower)
        )
        return packed.text, stretches

    def _first(self, question: Question) -> list[str]:
        texts = [r.text for name in self.first if (r := question.replies[name]).label == ANSWERED]
        lines = (x for text in texts for x in escape_markup(text).splitlines() if x.strip())
        return list(dict.fromkeys(x.lower() if self.lower else x for x in lines))

    def _values(self, question: Question, context: str) -> dict[str, str]:
        values = {"context": context, **{name: str(value) for name, value in self.fill.items()}}
        return values | prompt_values(question, self._variables() - values.keys())

    def _answered(self, question: Question, said: Generated | Fault, context: PromptContext) -> Question:
        read = read_reply(said, f"generate:{self.into}", lambda text: self._read(text, question))
        if isinstance(read, ParsedReply):
            logprob = said.logprob if isinstance(said, Generated) else None
            quotes = () if read.label == ABSTAINED else cite(read.text, context[1])
            reply = Reply(read.text, read.label, read.confidence, logprob, quotes)
        elif self.reply == "rewrite" and read.fault is not None and not read.fault.transient:
            reply = Reply(question.text, replies.KEPT, fault=read.fault)
        else:
            reply = read
        return with_replies(question, {self.into: reply})

    def _read(self, text: str, question: Question) -> ParsedReply:
        readers: dict[ReplyKind, Callable[[], ParsedReply]] = {
            "plain": lambda: replies.read_plain(replies.behind(text, self.after)),
            "label": lambda: replies.read_label(text, self.labels, self.default),
            "certainty": lambda: replies.read_certainty(text, self.labels, self.certain, self.default or ""),
            "text": lambda: replies.read_text(text),
            "keywords": lambda: replies.read_keywords(text),
            "json": lambda: replies.read_json(text),
            "confidence": lambda: replies.read_confidence(text, self.confident),
            "calls": lambda: replies.read_calls(text),
            "rewrite": lambda: replies.read_rewrite(text, question.text),
        }
        return readers[self.reply]()
