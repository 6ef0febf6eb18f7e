"""Self-contained web pages: template, styles and scripts of the folders `web`, joined to one HTML text.

All data is escaped by Jinja, or set as text by a script. As a second defence the content security policy lets
only the page's own scripts run, by their hashes, and lets no script turn text into markup (Trusted Types).
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
SHARED = "raypipe.text"  # package whose folder `web` holds the files that all pages share


def read_part(package: str, name: str) -> str:
    """Reads a file of a package's folder `web`, or if it is missing, of the folder that all pages share."""
    own = resources.files(package).joinpath("web", name)
    file = own if own.is_file() else resources.files(SHARED).joinpath("web", name)
    return file.read_text(encoding="utf-8")


@cache
def joined(package: str, names: Sequence[str]) -> str:
    """Joins the named files of a folder `web`, in order. Scripts share one scope, so order matters."""
    return "\n" + "".join(read_part(package, name) for name in names)


def policy(styles: str, scripts: str, own_host: bool) -> str:
    """Returns the content security policy of a page with these styles and scripts. `scripts` may be "". If
    `own_host`, the page may send requests to its own host."""
    script = f"script-src {_hash(scripts)}; " if scripts else ""
    asks = "connect-src 'self'; form-action 'self'" if own_host else "form-action 'none'"
    return f"default-src 'none'; {script}style-src {_hash(styles)}; img-src data:; {asks}; {LOCKED}"


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


@cache
def templates(package: str) -> Environment:
    """Returns the templates of a package's folder `web`, each compiled once per process."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # takes 20 ms, and `score` needs no page

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
    """Renders a page. Returns its HTML, and its content security policy, which the HTML also has. `values`
    are the template's variables. `filters` are added to the package's templates, also for later pages."""
    style, script = joined(package, tuple(styles)), joined(package, tuple(scripts)) if scripts else ""
    allowed = policy(style, script, own_host)
    env = templates(package)
    env.filters.update(filters)
    made = env.get_template(template).render(**values, style=style, script=script, policy=allowed)
    return made, allowed


def script_json(value: Any) -> Any:
    """Formats a value as JSON for a script element, so that no text in it can close the element. Raises
    ValueError for NaN and infinity."""
    from markupsafe import Markup  # installed with Jinja

    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028"))
