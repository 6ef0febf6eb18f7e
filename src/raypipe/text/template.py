"""The `query:` template of the steps that rank: what is searched for, made from a question and its replies.

Knows Jinja2's sandbox and the record Question. A template may use `text`, `body` and `replies.NAME` (the
text of an earlier step's reply; "" where the step was skipped), filters, tests, `or` and `if`, and no
methods or indexing, so that whether it renders does not depend on the row: what can go wrong goes wrong
when the recipe is read.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace

from jinja2 import StrictUndefined, TemplateError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from raypipe.records import Question

PLAIN = "{{ text }}"
"""The question as it was asked."""

_NAMES = frozenset({"text", "body", "replies"})
_ALLOWED = "a query template may use text, body and replies.NAME, filters, `or` and `if`"


def query_reads(template: str) -> frozenset[str]:
    """The fields of Question that a template reads: "text", "body", "replies.NAME".

    Raises ValueError, saying what is allowed, for anything that is not a template or could fail on some row.

    >>> sorted(query_reads("{{ replies.rewrite or text }}"))
    ['replies.rewrite', 'text']
    """
    try:
        tree = _environment().parse(template)
        names = meta.find_undeclared_variables(tree)
        if names - _NAMES:
            raise ValueError(f"{template!r} uses {', '.join(sorted(names - _NAMES))}; {_ALLOWED}")
        reads = frozenset(names - {"replies"}) | {f"replies.{r}" for r in _replies(tree, template)}
        _probe(template, reads)
    except (TemplateError, TypeError, ArithmeticError, LookupError) as e:
        raise ValueError(f"{template!r} is no query template: {e}; {_ALLOWED}") from e
    return reads


def query_renderer(template: str) -> Callable[[Question], str]:
    """The template compiled: question -> query. Raises KeyError where a reply that it names is not there."""
    compiled = _environment().from_string(template)
    reads = query_reads(template)
    replies = [r.removeprefix("replies.") for r in sorted(reads) if r.startswith("replies.")]
    fields = sorted(reads & {"text", "body"})

    def render(question: Question) -> str:
        # A namespace, not a dict: a reply may be called "items".
        texts = SimpleNamespace(**{r: question.replies[r].text for r in replies})
        return compiled.render({f: getattr(question, f) for f in fields}, replies=texts)

    return render


def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)


def _replies(tree: nodes.Template, template: str) -> set[str]:
    """The replies that a parsed template names."""
    names: set[str] = set()
    for access in tree.find_all((nodes.Getattr, nodes.Getitem, nodes.Call)):
        of = access.node if isinstance(access, nodes.Getattr | nodes.Getitem) else None
        if not (isinstance(of, nodes.Name) and of.name == "replies"):
            raise ValueError(f"{template!r} calls or looks into a value; {_ALLOWED}")
        key = access.attr if isinstance(access, nodes.Getattr) else _constant(access)
        if not isinstance(key, str) or key.startswith("_"):
            raise ValueError(f"{template!r} must name the reply, as replies.kg; {_ALLOWED}")
        names.add(key)
    uses = sum(n.name == "replies" for n in tree.find_all(nodes.Name))
    if uses != len(list(tree.find_all((nodes.Getattr, nodes.Getitem)))):
        raise ValueError(f"{template!r} must name the reply, as replies.kg; {_ALLOWED}")
    return names


def _constant(access: nodes.Node) -> object:
    """What stands between the brackets, where it is a constant."""
    arg = access.arg if isinstance(access, nodes.Getitem) else None
    return arg.value if isinstance(arg, nodes.Const) else None


def _probe(template: str, reads: frozenset[str]) -> None:
    """Renders the template with empty and filled values, which is where its filters can differ."""
    compiled = _environment().from_string(template)
    replies = sorted(r.removeprefix("replies.") for r in reads if r.startswith("replies."))
    for text, body, reply in product(("", "two words"), repeat=3):
        compiled.render(text=text, body=body, replies=SimpleNamespace(**dict.fromkeys(replies, reply)))
