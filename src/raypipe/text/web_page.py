"""A web page as one text that loads nothing: template, styles and scripts of folders named `web` in one.

Everything that came from data goes through Jinja's escaping, or is text that a script sets. Should anything
slip through, the page's policy runs nothing but its own scripts, known by their hashes, and no script may
turn a text into markup (Trusted Types).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

LOCKED = "base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
SHARED = "raypipe.text"  # the package whose folder `web` has what all pages share


def read_part(package: str, name: str) -> str:
    """A file of the folder `web` of a package, or of the shared one."""
    own = resources.files(package).joinpath("web", name)
    file = own if own.is_file() else resources.files(SHARED).joinpath("web", name)
    return file.read_text(encoding="utf-8")


@cache
def joined(package: str, names: Sequence[str]) -> str:
    """Some of these files, one after the other. Scripts share one scope: the first comes first."""
    return "\n" + "".join(read_part(package, name) for name in names)


def policy(styles: str, scripts: str, own_host: bool) -> str:
    """Returns the content security policy of a page with these styles and scripts, "": none. `own_host`: it
    may ask the host that it came from."""
    script = f"script-src {_hash(scripts)}; " if scripts else ""
    asks = "connect-src 'self'; form-action 'self'" if own_host else "form-action 'none'"
    return f"default-src 'none'; {script}style-src {_hash(styles)}; img-src data:; {asks}; {LOCKED}"


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@cache
def templates(package: str) -> Environment:
    """The templates of a package's folder `web`, each compiled once in a process."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # 20 ms that `score` does without

    env = Environment(
        loader=FunctionLoader(partial(read_part, package)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters["script_json"] = script_json
    return env


def page(
    package: str,
    template: str,
    styles: Sequence[str],
    scripts: Sequence[str],
    own_host: bool,
    values: Mapping[str, Any],
    filters: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> tuple[str, str]:
    """The page and its policy, which stands in it, too. `values` are what the template shows, `filters` what
    it calls."""
    style, script = joined(package, tuple(styles)), joined(package, tuple(scripts)) if scripts else ""
    allowed = policy(style, script, own_host)
    env = templates(package)
    env.filters.update(filters)
    made = env.get_template(template).render(**values, style=style, script=script, policy=allowed)
    return made, allowed


def script_json(value: Any) -> Any:
    """JSON that may stand in a script element: no text in it can close the element."""
    from markupsafe import Markup  # a part of Jinja

    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028"))
