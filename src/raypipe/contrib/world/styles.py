"""Page styles: a dozen kinds of real web markup, clean and broken; and filler text and markup.

A style turns a few sentences (already escaped) into one block, and adds markup before and after all blocks.
So a page that is cut to its size drops blocks, but not the block with the key sentence. Filler has people and
places of its own, so it neither answers nor contradicts a question.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from random import Random

from raypipe.contrib.world.world.names import frozen, number, pick, word, wording, words

Rows = Sequence[tuple[str, str]]
"""Table rows: label and value, escaped as HTML."""

LINKS = words("Home News Lists Members Archive Contact Jobs Press Newsletter Privacy Terms Help")


def _filled(rng: Random, html: str, **words: object) -> str:
    pools = {slot: pool for slot, pool in wording("prose")["drawn"].items() if f"{{{slot}}}" in html}
    votes = number(rng, -20, 300) if "{votes}" in html else 0
    return html.format_map({**words, "votes": votes, **{slot: pick(rng, of) for slot, of in pools.items()}})


@dataclass(frozen=True, slots=True)
class Style:
    name: str
    sentences: int  # in a block, at most
    before: str  # HTML before all blocks
    blocks: tuple[str, ...]  # HTML of a block, used in turn
    after: str
    lead: str = ""  # HTML of the first block; "": like the others
    table: str = ""  # CSS class of the table

    def opening(self, rng: Random, title: str, rows: Rows) -> str:
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
    """Returns the HTML before a page's content (head, unique number, navigation) and after it (footer)."""
    meta = f'<meta name="request-id" content="{number}">'
    if style.name == "broken":  # all other styles open and close html, head and body
        head = f"<title>{title}</title>{meta}<BODY bgcolor=white>"
        return head, "<HR><small>best viewed at 800x600</small>"
    head = f'<!DOCTYPE html><html lang="{language}"><head><meta charset="utf-8"><title>{title}</title>{meta}'
    nav = "".join(f'<li><a href="/{x.lower()}">{x}</a></li>' for x in (LINKS[:3] if small else LINKS))
    foot = f"<footer>&copy; 2024 {site}</footer></body></html>"
    return f"{head}</head><body><nav><ul>{nav}</ul></nav>", foot


def written(rng: Random, text: str, ascii_only: bool) -> str:
    """Escapes a text as HTML. `ascii_only`: numeric references replace characters beyond ASCII."""
    safe = escape(text, quote=rng.random() < 0.5)
    return safe.encode("ascii", "xmlcharrefreplace").decode("ascii") if ascii_only else safe


def linked(rng: Random, html: str, name: str) -> str:
    """Makes the first mention of a name a link or bold."""
    tag = pick(rng, (f'<a href="/e/{int(rng.random() * 1e6)}" title="entry">{name}</a>', f"<b>{name}</b>"))
    return html.replace(name, tag, 1)


CONSENT = "We and our partners store and access information on a device, such as cookies."

BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
POOL_CHARS = 1_600_000  # longer than any page, so that a slice is always long enough


class Prose:
    """Source of meaningless sentences, drawn from the fixed pools of `words/prose.yaml`."""

    def __init__(self, rng: Random) -> None:
        said = wording("prose")
        self.languages = {name: words(text) for name, text in said["foreign"].items()}
        patterns: Sequence[str] = said["sentences"]
        self._patterns = [(text, re.findall(r"{(\w)}", text)) for text in patterns]
        self._titles: Sequence[str] = said["titles"]
        self._pools: dict[str, Sequence[str]] = {
            "a": words(said["adjectives"]),
            "m": words(said["months"]),
            "p": [word(rng, 3) + "sund" for _ in range(60)],
            "x": [f"{word(rng, 2)}o {word(rng, 3)}sen" for _ in range(90)],
        }

    def sentence(self, rng: Random) -> str:
        pattern, slots = pick(rng, self._patterns)
        pools, n = self._pools, str(2 + int(rng.random() * 900))
        return pattern.format_map({s: n if s == "n" else pick(rng, pools[s]) for s in slots})

    def foreign(self, rng: Random, language: str) -> str:
        pool = self.languages[language]
        made = [pick(rng, pool) for _ in range(6 + int(rng.random() * 12))]
        return "".join(made) + "。" if language == "zh" else " ".join(made).capitalize() + "."

    def title(self, rng: Random, name: str) -> str:
        return pick(rng, self._titles).format(name)


class Bulk:
    """Source of markup without visible text, of any length. A page of 300 KB has about 20 KB of text."""

    def __init__(self, rng: Random) -> None:
        token = [word(rng, 2).lower() for _ in range(400)]
        rules = [
            f".{pick(rng, token)}-{pick(rng, token)}{{margin:{i % 40}px {i % 7}px;"
            f"color:#{i * 7919 % 16777216:06x};"
            f"background:url(/a/{pick(rng, token)}.png) no-repeat;display:flex}}"
            for i in range(300)
        ]
        calls = [
            f"!function(e,t){{var {pick(rng, token)}=t[{i}]||{{}};e.{pick(rng, token)}=function(n)"
            f'{{return n&&n.{pick(rng, token)}?"{pick(rng, token)}":null}}}}(window,[{i},{i * 31 % 997}]);'
            for i in range(300)
        ]
        records = [
            f'{{"id":{i * 104729 % 999983},"{pick(rng, token)}":"{pick(rng, token)}_{i}",'
            f'"on":{str(i % 3 > 0).lower()}}},'
            for i in range(300)
        ]
        self._css = self._long(rules, rng)
        self._js = self._long(calls, rng)
        self._json = self._long(records, rng)
        self._pixels = self._long(["".join(rng.choices(BASE64, k=500)) for _ in range(120)], rng)
        self._soup = [self._tags(rng, token) for _ in range(300)]

    def _long(self, parts: list[str], rng: Random) -> str:
        size = sum(map(len, parts))
        return "".join(rng.choices(parts, k=POOL_CHARS * len(parts) // size + len(parts)))

    def _tags(self, rng: Random, token: list[str]) -> str:
        a, b, c = (pick(rng, token) for _ in range(3))
        n = int(rng.random() * 1e6)
        shapes = (
            f'<div class="{a}__{b} {c}" data-{a}-id="{n}" data-track=\'{{"k":"{b}","v":{n}}}\'>'
            f'<div class="{c}-inner">'
            f'<div class="{b}" role="presentation"></div></div></div>',
            f'<svg class="{a}" viewBox="0 0 24 24" aria-hidden="true"><path d="M{n % 24} 2.1c-{n % 9}.3 0-4 '
            f'1.7-4 4v{n % 11}.8c0 2 1.3 3.6 3 4.1l-{n % 5}.2 2h2.4l1-2.5h{n % 7}z"></path>'
            f'<use href="#{b}-{c}"></use></svg>',
            f'<a class="{a}-{b}" href="/{a}/{b}/{c}?utm_source={c}&amp;id={n}" aria-label="{a}">'
            f'<i class="icon {c}"></i></a>',
            f'<img class="{a} lazy" data-src="/media/{n}/{b}.jpg" data-srcset="/media/{n}/{b}@2x.jpg 2x" '
            f'width="{n % 800}" height="{n % 600}" loading="lazy" alt="">',
            f'<input type="hidden" name="{a}[{b}]" value="{n:x}{n * 7:x}"><span class="{c}"></span>',
        )
        return pick(rng, shapes)

    def _cut(self, rng: Random, pool: str, chars: int) -> str:
        start = int(rng.random() * (POOL_CHARS - chars)) if chars < POOL_CHARS else 0
        return pool[start : start + chars]

    def script(self, rng: Random, chars: int) -> str:
        if rng.random() < 0.3:
            state = self._cut(rng, self._json, chars)
            return f'<script type="application/json" id="state">[{state}]</script>'
        return f"<script>{self._cut(rng, self._js, chars)}</script>"

    def soup(self, rng: Random, chars: int) -> str:
        made, size = [], 0
        while size < chars:
            piece = pick(rng, self._soup)
            made.append(piece)
            size += len(piece)
        return "".join(made)

    def fill(self, rng: Random, chars: int) -> tuple[str, str, str]:
        """Returns invisible markup for a page's top, middle and end, about `chars` characters together."""
        if chars < 120:
            return "", "", ""
        if chars < 2_000:
            return self.script(rng, max(0, chars - 70)), "", ""
        script, style, image = 0.15 + 0.5 * rng.random(), 0.2 * rng.random(), 0.15 * rng.random()
        soup = max(0.0, 1 - script - style - image)
        css = self._cut(rng, self._css, int(chars * style))
        top = f"<style>{css}</style>{self.script(rng, int(chars * script * 0.4))}"
        consent = f'<div id="consent" style="display:none">{CONSENT}</div>'
        middle = self.soup(rng, int(chars * soup * 0.6))
        pixels = self._cut(rng, self._pixels, int(chars * image))
        middle += f'<img alt="" src="data:image/png;base64,{pixels}">'
        end = consent + self.soup(rng, int(chars * soup * 0.4)) + self.script(rng, int(chars * script * 0.6))
        return top, middle, end
