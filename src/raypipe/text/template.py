"""Templates that cannot fail on a row: the `query:` of the steps that rank, and the messages of prompts.

Knows Jinja2's sandbox and the record Question. A template may use names, `replies.NAME` (the text of an
earlier step's reply; "" where the step was skipped), filters, tests, `or` and `if`, and no methods or
indexing, so that whether it renders does not depend on the row: an error shows when the recipe is read. Two
filters are ours, `clean` and `colon` (`text.clean`). Texts that are filled in are never read as templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import product
from types import SimpleNamespace

from jinja2 import StrictUndefined, TemplateError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from raypipe.core.records import Question
from raypipe.text.clean import clean, colon
from raypipe.text.sanitize import escape_markup

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
