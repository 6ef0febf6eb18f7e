"""Page styles: a dozen kinds of real web markup, clean and broken. Knows no question.

A style turns one chunk of text (already escaped) into one block, and has something to put before and after
all blocks. So whatever else a page loses to its size, the block that matters can be kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from random import Random

from raypipe.synth.world.names import pick

Rows = Sequence[tuple[str, str]]
"""Label and value, escaped."""

EMOJI = (
    "\N{FILM FRAMES}",
    "\N{MUSICAL NOTE}",
    "\N{CHART WITH UPWARDS TREND}",
    "\N{SOCCER BALL}",
    "\N{SPARKLES}",
    "\N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16}",
    "\N{WAVING HAND SIGN}",
)
USERS = (
    "kettle77",
    "mr_otter",
    "nightbus",
    "Paper-Moon",
    "zed_of_old",
    "lampion",
    "two.left.feet",
    "grandma_k",
)
HEADINGS = ("Overview", "Background", "Details", "What people say", "History", "Numbers", "See also", "Notes")


@dataclass(frozen=True, slots=True)
class Style:
    name: str
    sentences: int  # of a block, at most
    before: Callable[[Random, str, Rows], str]  # (rng, title, rows)
    block: Callable[[Random, int, str], str]  # (rng, position, text)
    after: str
    wellformed: bool = True  # False: no html, head or body tags, or they are never closed


def table(rows: Rows, kind: str) -> str:
    body = "".join(f'<tr><th scope="row">{label}</th><td>{value}</td></tr>' for label, value in rows)
    return f'<table class="{kind}"><tbody>{body}</tbody></table>'


def _headed(rng: Random, title: str, rows: Rows) -> str:
    return f'<main><article><header><h1>{title}</h1><p class="by">by {pick(rng, USERS)}</p></header>'


def _wiki(rng: Random, title: str, rows: Rows) -> str:
    return (
        f'<div id="content"><h1 id="firstHeading">{title}</h1><div class="mw-parser-output">'
        + table(rows, "infobox vcard")
        + "<!-- NewPP limit report -->"
    )


def _table(rng: Random, title: str, rows: Rows) -> str:
    head = "<thead><tr><th>No.</th><th>Entry</th></tr></thead>"
    return f"<section><h1>{title}</h1><table><caption>{title}</caption>{head}"


def _list(rng: Random, title: str, rows: Rows) -> str:
    return f"<section><h1>{title}</h1><ol class=entries>"


def _forum(rng: Random, title: str, rows: Rows) -> str:
    return f'<div class="thread"><h1 class="topic">{title}</h1>'


def _news(rng: Random, title: str, rows: Rows) -> str:
    return (
        f'<script type="application/ld+json">{{"@context":"https://schema.org","@type":"NewsArticle"}}</script>'
        f"<div hidden>{pick(rng, HEADINGS)}</div><article><h1>{title}</h1>"
    )


def _app(rng: Random, title: str, rows: Rows) -> str:
    wall = "<noscript>You need to enable JavaScript to run this app.</noscript>"
    return f'{wall}<div id="root"><div><h1>{title}</h1>'


def _faq(rng: Random, title: str, rows: Rows) -> str:
    return f"<h1>{title}</h1>{table(rows, 'facts')}<dl>"


def _old(rng: Random, title: str, rows: Rows) -> str:
    return f"<CENTER><FONT size=5><B>{title}</B></FONT></CENTER><HR>{table(rows, 'old')}"


def _paragraph(rng: Random, i: int, text: str) -> str:
    head = f"<h2>{pick(rng, HEADINGS)}</h2>" if i and i % 6 == 0 else ""
    return f'{head}<p class="body-text">{text}</p>'


def _wiki_paragraph(rng: Random, i: int, text: str) -> str:
    return f'<p>{text}<sup class="reference"><a href="#cite-{i}">[{i + 1}]</a></sup></p>'


def _row(rng: Random, i: int, text: str) -> str:
    return f"<tr><td>{i + 1}</td><td>{text}</td></tr>"


def _item(rng: Random, i: int, text: str) -> str:
    return f'<li id="e{i}">{text}</li>'


def _post(rng: Random, i: int, text: str) -> str:
    votes = int(rng.random() * 300) - 20
    who = f"<b>{pick(rng, USERS)}</b> <time>{i + 1}h ago</time>"
    return f'<div class="post">{who}<div>{text}</div><i>{votes} votes</i></div>'


def _blog(rng: Random, i: int, text: str) -> str:
    return f"<p>{text} {pick(rng, EMOJI)}</p>" if i % 3 else f"<blockquote><p>{text}</p></blockquote>"


def _news_paragraph(rng: Random, i: int, text: str) -> str:
    advert = (
        '<div class="ad" aria-hidden="true" style="display:none">Advertisement</div>' if i % 5 == 1 else ""
    )
    return f'<p data-component="text-block">{text}</p>{advert}'


def _boxes(rng: Random, i: int, text: str) -> str:
    return f'<div class="css-{i * 7919 % 46656:x}"><div class="css-{i}"><span>{text}</span></div></div>'


def _answer(rng: Random, i: int, text: str) -> str:
    return f"<dt>Question {i + 1}<dd>{text}"


def _details(rng: Random, i: int, text: str) -> str:
    return f"<details><summary>{pick(rng, HEADINGS)}</summary>{text}</details>"


def _open_paragraph(rng: Random, i: int, text: str) -> str:
    stray = pick(rng, ("</div>", "<br>", "</span></p>", "<P align=left>", "<font color=navy>", ""))
    return f"<P>{text}{stray}"


STYLES: dict[str, Style] = {
    s.name: s
    for s in (
        Style("article", 4, _headed, _paragraph, "</article></main>"),
        Style("wiki", 4, _wiki, _wiki_paragraph, "</div></div>"),
        Style("table", 1, _table, _row, "</table></section>"),
        Style("list", 1, _list, _item, "</ol></section>"),
        Style("forum", 2, _forum, _post, "</div>"),
        Style("blog", 3, _headed, _blog, "</article><aside><h3>About me</h3></aside></main>"),
        Style("news", 2, _news, _news_paragraph, "</article>"),
        Style("app", 2, _app, _boxes, "</div></div>"),
        Style("faq", 2, _faq, _answer, "</dl>"),
        Style("details", 2, _headed, _details, "</article></main>"),
        Style("broken", 3, _old, _open_paragraph, "", wellformed=False),
    )
}


def frame(
    rng: Random, style: Style, title: str, number: str, language: str, site: str, small: bool
) -> tuple[str, str]:
    """What stands before and after a page's content: the head with its unique number, navigation, footer."""
    meta = f'<meta name="request-id" content="{number}">'
    if not style.wellformed:
        return (
            f"<title>{title}</title>{meta}<BODY bgcolor=white>",
            "<HR><small>best viewed at 800x600</small>",
        )
    head = f'<!DOCTYPE html><html lang="{language}"><head><meta charset="utf-8"><title>{title}</title>{meta}'
    links = (
        ("Home", "News", "Lists")
        if small
        else (
            "Home",
            "News",
            "Lists",
            "Members",
            "Archive",
            "Contact",
            "Jobs",
            "Press",
            "Newsletter",
            "Privacy",
            "Terms",
            "Help",
        )
    )
    nav = "".join(f'<li><a href="/{x.lower()}">{x}</a></li>' for x in links)
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
