"""Templates that cannot fail on a row: the `query:` of ranking steps, and the messages of prompts.

Templates run in Jinja2's sandbox. A template may use names, `replies.NAME` (the text of an earlier step's
reply; "" if the step was skipped), filters, tests, `or` and `if`. It may not call anything or look into a
value. It is tried with empty and other texts when the recipe is read, so errors appear there and not on a
row. Two filters are added, `clean` and `colon` (`text.sanitize`). Inserted texts are never read as templates.

`ByLabel` is the value of a step's field (a prompt, an adapter) that may depend on an earlier reply.
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
"""Template of the question's text alone."""

KEPT = 256
"""Most compiled templates in the cache. An endpoint opens its steps for every request; without the cache
compiling took 5 ms of each. A recipe has some ten templates."""

REPLY = "replies."
_ALLOWED = "a query template may use text, body and replies.NAME, filters, `or` and `if`"


def query_reads(template: str) -> frozenset[str]:
    """Lists the fields of Question that a query template reads: "text", "body", "replies.NAME".

    Raises ValueError if the text is no template, uses other names, or could fail on some row.

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
    """Returns a field of a question; for "replies.NAME" the reply's text. Raises KeyError without it."""
    if name.startswith(REPLY):
        return question.replies[name.removeprefix(REPLY)].text
    value: str = getattr(question, name)
    return value


@lru_cache(KEPT)
def uses(template: str) -> frozenset[str]:
    """Lists the names that a template uses; a reply is "replies.NAME". Raises ValueError if the text is no
    template or could fail with some texts."""
    try:
        tree = _environment().parse(template)
        names = meta.find_undeclared_variables(tree)
        found = frozenset(names - {"replies"}) | {REPLY + r for r in _replies(tree)}
        render = renderer(template)
        for filled in product(("", "two words"), repeat=len(found)):  # filters may fail on empty texts only
            render(dict(zip(sorted(found), filled, strict=True)))
    except (TemplateError, TypeError, ArithmeticError, LookupError) as e:
        raise ValueError(str(e)) from e
    return found


@lru_cache(KEPT)
def renderer(template: str) -> Callable[[Mapping[str, str]], str]:
    compiled = _environment().from_string(template)

    def render(values: Mapping[str, str]) -> str:
        # A namespace instead of a dict, since a reply may be named "items".
        replies = {n.removeprefix(REPLY): v for n, v in values.items() if n.startswith(REPLY)}
        names = {n: v for n, v in values.items() if not n.startswith(REPLY)}
        return compiled.render(names, replies=SimpleNamespace(**replies))

    return render


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
    )
    # Escape after cleaning: text that `clean` removes may have separated the parts of a mark.
    made.filters |= {"clean": lambda text: escape_markup(clean(text)), "colon": colon}
    return made


def _replies(tree: nodes.Template) -> set[str]:
    names: set[str] = set()
    for access in tree.find_all((nodes.Getattr, nodes.Getitem, nodes.Call)):
        of = access.node if isinstance(access, nodes.Getattr | nodes.Getitem) else None
        if not (isinstance(of, nodes.Name) and of.name == "replies"):
            raise ValueError("it calls or looks into a value")
        inside = getattr(access, "arg", None)  # the expression in brackets
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
    """Templates of a system and a user message. They use exactly the declared variables and render with any
    texts. The templates are part of a recipe's identity; their file is not."""

    user: str
    system: str = ""  # "": no system message
    variables: tuple[str, ...] = ()  # distinct names that the messages use; a reply is replies.NAME

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
                declared = ", ".join(self.variables) or "nothing"
                raise ValueError(f"{name}: it uses {undeclared[0]!r}; variables declares {declared}")
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
    """A value for all questions, or a value for each label of an earlier reply."""

    default: T  # `else`: value for labels that are not in the table
    by: str = ""  # name of the reply; "": all questions have the default
    table: Mapping[str, T] = field(default_factory=dict)  # label -> value

    def reads(self) -> frozenset[str]:
        return frozenset({REPLY + self.by}) if self.by else frozenset()

    def of(self, question: Question) -> T:
        return self.table.get(question.replies[self.by].label, self.default) if self.by else self.default

    def values(self) -> tuple[T, ...]:
        return (*self.table.values(), self.default)
