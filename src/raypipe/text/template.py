"""Templates that cannot fail on a row: the `query:` of the steps that rank, and the messages of prompts; and
a field of a step that may differ with an earlier reply, such as prompt and adapter.

Knows Jinja2's sandbox and the record Question. A template may use names, `replies.NAME` (the text of an
earlier step's reply; "" where the step was skipped), filters, tests, `or` and `if`, and no methods or
indexing, so that whether it renders does not depend on the row: an error shows when the recipe is read. Two
filters are ours, `clean` and `colon` (`text.sanitize`). Texts that are filled in are never read as templates.

A prompt is checked when it is made: what its two messages use is exactly what it declares, and both render
whatever texts are put in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from types import SimpleNamespace
from typing import Generic, TypeVar

from jinja2 import StrictUndefined, TemplateError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from raypipe.core.llm import Chat, Message, MessageRole
from raypipe.core.records import Question
from raypipe.text.sanitize import clean, colon, escape_markup

T = TypeVar("T")
PLAIN = "{{ text }}"
"""The question as it was asked."""

KEPT = 256
"""Templates that stay compiled: an endpoint opens its steps for every request, and compiling them again took
5 ms of it. A recipe has some ten."""

REPLY = "replies."
_ALLOWED = "a query template may use text, body and replies.NAME, filters, `or` and `if`"


def query_reads(template: str) -> frozenset[str]:
    """The fields of Question that a query template reads: "text", "body", "replies.NAME".

    Raises ValueError, saying what is allowed, for anything that is not a template or could fail on some row.

    >>> sorted(query_reads("{{ replies.rewrite or text }}"))
    ['replies.rewrite', 'text']
    """
    try:
        names = uses(template)
    except ValueError as e:
        raise ValueError(f"{template!r} is no query template: {e}; {_ALLOWED}") from e
    strange = sorted(n for n in names - {"text", "body"} if not n.startswith(REPLY))
    if strange:
        raise ValueError(f"{template!r} uses {', '.join(strange)}; {_ALLOWED}")
    return names


def query_renderer(template: str) -> Callable[[Question], str]:
    reads = query_reads(template)
    render = renderer(template)

    def of(question: Question) -> str:
        return render({name: field_of(question, name) for name in reads})

    return of


def field_of(question: Question, name: str) -> str:
    """A field of a question, or the text of a reply by "replies.NAME". KeyError for a missing reply."""
    if name.startswith(REPLY):
        return question.replies[name.removeprefix(REPLY)].text
    value: str = getattr(question, name)
    return value


@lru_cache(KEPT)
def uses(template: str) -> frozenset[str]:
    """The names that a template uses, a reply as "replies.NAME". Raises ValueError for anything that is not a
    template or could fail for some texts in their place."""
    try:
        tree = _environment().parse(template)
        names = meta.find_undeclared_variables(tree)
        found = frozenset(names - {"replies"}) | {REPLY + r for r in _replies(tree)}
        render = renderer(template)
        for filled in product(("", "two words"), repeat=len(found)):  # filters differ on empty texts
            render(dict(zip(sorted(found), filled, strict=True)))
    except (TemplateError, TypeError, ArithmeticError, LookupError) as e:
        raise ValueError(str(e)) from e
    return found


@lru_cache(KEPT)
def renderer(template: str) -> Callable[[Mapping[str, str]], str]:
    compiled = _environment().from_string(template)

    def render(values: Mapping[str, str]) -> str:
        # A namespace, not a dict: a reply may be called "items".
        replies = {n.removeprefix(REPLY): v for n, v in values.items() if n.startswith(REPLY)}
        names = {n: v for n, v in values.items() if not n.startswith(REPLY)}
        return compiled.render(names, replies=SimpleNamespace(**replies))

    return render


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
    )
    # escaped behind it: what cleaning takes out may have kept a mark of a prompt apart
    made.filters |= {"clean": lambda text: escape_markup(clean(text)), "colon": colon}
    return made


def _replies(tree: nodes.Template) -> set[str]:
    names: set[str] = set()
    for access in tree.find_all((nodes.Getattr, nodes.Getitem, nodes.Call)):
        of = access.node if isinstance(access, nodes.Getattr | nodes.Getitem) else None
        if not (isinstance(of, nodes.Name) and of.name == "replies"):
            raise ValueError("it calls or looks into a value")
        inside = getattr(access, "arg", None)  # what stands between brackets
        key = access.attr if isinstance(access, nodes.Getattr) else getattr(inside, "value", None)
        if not isinstance(key, str) or key.startswith("_"):
            raise ValueError("it must name the reply, as replies.kg")
        names.add(key)
    mentions = sum(n.name == "replies" for n in tree.find_all(nodes.Name))
    if mentions != len(list(tree.find_all((nodes.Getattr, nodes.Getitem)))):
        raise ValueError("it must name the reply, as replies.kg")
    return names


@dataclass(frozen=True, slots=True)
class Prompt:
    """A system and a user message. The texts are identity; the file that they came from is not."""

    user: str
    system: str = ""  # "": none
    variables: tuple[str, ...] = ()  # all that the two use, each once; a reply as replies.NAME

    def __post_init__(self) -> None:
        if not self.user.strip():
            raise ValueError("user: expected a message, found none")
        used: set[str] = set()
        for name in ("system", "user"):
            try:
                found = uses(getattr(self, name))
            except ValueError as e:
                raise ValueError(f"{name}: it is no prompt template: {e}") from e
            if undeclared := sorted(found - set(self.variables)):
                raise ValueError(
                    f"{name}: it uses {undeclared[0]!r}, which variables does not declare; "
                    f"declared: {', '.join(self.variables) or 'nothing'}"
                )
            used |= found
        if idle := [v for v in self.variables if v not in used]:
            raise ValueError(f"variables: {idle[0]!r} is declared and used in neither message")

    def renderer(self) -> Callable[[Mapping[str, str]], Chat]:
        texts: list[tuple[MessageRole, str]] = [("system", self.system), ("user", self.user)]
        messages = [(role, renderer(text)) for role, text in texts if text.strip()]

        def render(values: Mapping[str, str]) -> Chat:
            given = {name: values[name] for name in self.variables}
            return tuple(Message(role, fill(given)) for role, fill in messages)

        return render


@dataclass(frozen=True, slots=True)
class ByLabel(Generic[T]):
    """A value for all questions, or one for each label of an earlier reply."""

    default: T  # `else`: for labels that the table does not name
    by: str = ""  # name of the reply; "": the default is for all
    table: Mapping[str, T] = field(default_factory=dict)

    def reads(self) -> frozenset[str]:
        return frozenset({REPLY + self.by}) if self.by else frozenset()

    def of(self, question: Question) -> T:
        return self.table.get(question.replies[self.by].label, self.default) if self.by else self.default

    def values(self) -> tuple[T, ...]:
        return (*self.table.values(), self.default)
