"""Page styles: a dozen kinds of real web markup, clean and broken. Knows no question.

A style turns one chunk of text (already escaped) into one block, and has something to put before and after
all blocks. So whatever else a page loses to its size, the block that matters can be kept.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from random import Random

from raypipe.synth.wording import frozen, wording
from raypipe.synth.world.names import number, pick, words

Rows = Sequence[tuple[str, str]]
"""Label and value, escaped."""

LINKS = words("Home News Lists Members Archive Contact Jobs Press Newsletter Privacy Terms Help")


def _filled(rng: Random, html: str, **words: object) -> str:
    pools = {slot: pool for slot, pool in wording("prose")["drawn"].items() if f"{{{slot}}}" in html}
    votes = number(rng, -20, 300) if "{votes}" in html else 0
    return html.format_map({**words, "votes": votes, **{slot: pick(rng, of) for slot, of in pools.items()}})


@dataclass(frozen=True, slots=True)
class Style:
    """One kind of `words/styles.yaml`."""

    name: str
    sentences: int  # of a block, at most
    before: str
    blocks: tuple[str, ...]
    after: str
    lead: str = ""  # the first block, "" for one like the others
    table: str = ""

    def opening(self, rng: Random, title: str, rows: Rows) -> str:
        """What stands before all blocks."""
        body = "".join(f'<tr><th scope="row">{label}</th><td>{value}</td></tr>' for label, value in rows)
        table = f'<table class="{self.table}"><tbody>{body}</tbody></table>'
        return _filled(rng, self.before, title=title, table=table)

    def block(self, rng: Random, i: int, text: str) -> str:
        html = self.lead if self.lead and not i else self.blocks[i % len(self.blocks)]
        return _filled(rng, html, text=text, i=i, n=i + 1, code=f"{i * 7919 % 46656:x}")


@functools.cache
def styles() -> dict[str, Style]:
    return {name: Style(name, **frozen(said)) for name, said in wording("styles").items()}


def frame(style: Style, title: str, number: str, language: str, site: str, small: bool) -> tuple[str, str]:
    """What stands before and after a page's content: the head with its unique number, navigation, footer."""
    meta = f'<meta name="request-id" content="{number}">'
    if style.name == "broken":  # the others have html, head and body tags, and close them
        return (
            f"<title>{title}</title>{meta}<BODY bgcolor=white>",
            "<HR><small>best viewed at 800x600</small>",
        )
    head = f'<!DOCTYPE html><html lang="{language}"><head><meta charset="utf-8"><title>{title}</title>{meta}'
    nav = "".join(f'<li><a href="/{x.lower()}">{x}</a></li>' for x in (LINKS[:3] if small else LINKS))
    foot = f"<footer>&copy; 2024 {site}</footer></body></html>"
    return f"{head}</head><body><nav><ul>{nav}</ul></nav>", foot


def written(rng: Random, text: str, ascii_only: bool) -> str:
    """Text as HTML: escaped, in some pages with numeric references for everything beyond ASCII."""
    safe = escape(text, quote=rng.random() < 0.5)
    return safe.encode("ascii", "xmlcharrefreplace").decode("ascii") if ascii_only else safe


def linked(rng: Random, html: str, name: str) -> str:
    """The first mention of a name as a link or set in bold."""
    tag = pick(rng, (f'<a href="/e/{int(rng.random() * 1e6)}" title="entry">{name}</a>', f"<b>{name}</b>"))
    return html.replace(name, tag, 1)
