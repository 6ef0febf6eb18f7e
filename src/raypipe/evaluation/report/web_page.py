"""A web page as one text that loads nothing: template, styles and scripts of the folder `web` in one.

Everything that came from data goes through Jinja's escaping, or is text that a script sets. Should anything
slip through, the page's policy runs nothing but its own scripts, known by their hashes, and no script may
turn a text into markup (Trusted Types).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from raypipe.evaluation.report import plot, wording
from raypipe.metrics.losses import steps_of

if TYPE_CHECKING:
    from jinja2 import Environment

FILTERS = ("signed", "share", "seconds", "measured", "fit_lines", "label_text", "ann_line", "listed")
"""Functions of `wording` that templates use."""

LOCKED = "base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"


def read_part(name: str) -> str:
    """A file of the folder `web`."""
    return resources.files("raypipe.evaluation.report").joinpath("web", name).read_text(encoding="utf-8")


@cache
def joined(names: Sequence[str]) -> str:
    """Some files of the folder `web`, one after the other. Scripts share one scope: the first comes first."""
    return "\n" + "".join(map(read_part, names))


def policy(styles: str, scripts: str, own_host: bool) -> str:
    """Returns the content security policy of a page with these styles and scripts, "": none. `own_host`: it
    may ask the host that it came from."""
    script = f"script-src {_hash(scripts)}; " if scripts else ""
    asks = "connect-src 'self'; form-action 'self'" if own_host else "form-action 'none'"
    return f"default-src 'none'; {script}style-src {_hash(styles)}; img-src data:; {asks}; {LOCKED}"


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@cache
def templates() -> Environment:
    """The templates of the folder `web`, each compiled once in a process."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # 20 ms that `score` does without

    env = Environment(
        loader=FunctionLoader(read_part), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    env.filters.update({name: getattr(wording, name) for name in FILTERS})
    env.filters.update(script_json=script_json, steps_of=steps_of)
    env.filters["expected"] = lambda calls: wording.between(calls, str, "-")
    return env


def page(
    template: str, styles: Sequence[str], scripts: Sequence[str], own_host: bool, values: Mapping[str, Any]
) -> tuple[str, str]:
    """The page and its policy, which stands in it, too. `values` are what the template shows."""
    style, script = joined(tuple(styles)), joined(tuple(scripts)) if scripts else ""
    allowed = policy(style, script, own_host)
    made = templates().get_template(template)
    return made.render(**values, plot=plot, style=style, script=script, policy=allowed), allowed


def script_json(value: Any) -> Any:
    """JSON that may stand in a script element: no text in it can close the element."""
    from markupsafe import Markup

    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028"))
