"""HTML to text: the text of BeautifulSoup, by a faster parser if possible, with hidden parts marked.

A page's text is `BeautifulSoup(html, parser).get_text(" ", strip=True)` after white-space folding
(`" ".join(text.split())`). It omits comments, declarations and the text of script, style, template, rt and
rp, and has a space between any two text nodes. NUL is removed and a lone surrogate becomes U+FFFD, since no
table can store them. Soft hyphens, other zero-width characters and `<wbr>` are removed, since they would
split words for a search.

The faster parser is turbohtml; it can replace lxml. It builds the tree of the HTML standard, while lxml's
libxml2 keeps the order of the source. The texts of real pages are equal (36 of 36, and 130 of 130 of
readability's). Of 1,500 windows of real pages, damaged at random, 6 % differ: 81 by a space where a stray tag
splits a word, 5 by the order around a broken table, 3 by markup that only libxml2 takes for text. Two more
would lack text: `_loses` detects such pages, and BeautifulSoup parses them. A caller can request a comparison
for any page.

`to_text` has no limits: a hostile page can take seconds and gigabytes. `SandboxedParser` parses pages of
strangers under hard limits (`core.sandbox`). It refuses pages that are too large, and binary files.
"""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, TypeAlias

import turbohtml

from raypipe.core.records import Block, Fault, Span
from raypipe.core.sandbox import Refused, Sandbox, SandboxLimits
from raypipe.text.blocks import CLOSE, NEVER_DRAWN, OPEN, Element, Read, hides, page_blocks, unmark

Parser: TypeAlias = Literal["lxml", "html.parser"]
Via: TypeAlias = Literal["fast", "bs4"]
Way: TypeAlias = Literal["fast", "compared", "fallback", "bs4", "plain"]
"""Parser that gave the text. fast: turbohtml; compared: turbohtml, with BeautifulSoup's text equal; fallback:
BeautifulSoup, since turbohtml may lose text or differed; bs4: BeautifulSoup, as requested; plain: no HTML."""

COMPARE_CHARS = 2_000_000
"""Most characters of a page compared on request: BeautifulSoup reads 10 MB/s, and must not cause a fault."""

BLOCK_CHARS = 5_000_000
"""Most characters of a page with blocks: the walk takes 2 us a node, and 20 MB can have two million nodes."""

_DROPPED = ("script", "style", "template", "rt", "rp")
_RAW = ("script", "iframe", "textarea", "xmp", "noembed", "noframes")
_SELF_CLOSED = re.compile(rf"<(?:{'|'.join(_RAW)})\b[^<>]*/>", re.IGNORECASE)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_WIDTHLESS = re.compile(
    "[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
    "|(?<=[\0-\u058f])[\u200c\u200d]"  # joiners; in Persian and Indian scripts they are part of the spelling
)
_CONTROL = re.compile("[\0-\x08\x0e-\x1f]")
_PACKED = ("PK\x03\x04", "\x1f\x8b", "\x1f\ufffd")
_MAGIC = ("%PDF-", *_PACKED, "\x89PNG", "\ufffdPNG", "GIF87a", "GIF89a", "{\\rtf", "\x7fELF")
_HEAD = 4096  # first characters of a page, by which binary files are detected
_BINARY_SHARE = 0.05  # most control characters among them; compressed bytes have .12, UTF-16 read as bytes .5
_STRAY = 8  # number of control characters that is always allowed


@dataclass(frozen=True, slots=True)
class ParsedPage:
    text: str  # white-space folded; "" if the page has none
    hidden: tuple[Span, ...]  # parts of the text that a browser does not show, ascending, disjoint
    way: Way
    blocks: tuple[Block, ...] = ()  # ascending, disjoint; (): no text, blocks unknown or page too large


def fold(text: str) -> str:
    """Folds white space to single spaces, strips the ends, and drops zero-width characters (`shown`)."""
    return " ".join(shown(text).split())


def shown(text: str) -> str:
    """Removes zero-width characters: soft hyphens, zero-width spaces, marks of writing direction. Also makes
    the text storable (`storable`)."""
    return text if text.isascii() and "\0" not in text else _WIDTHLESS.sub("", storable(text))


def to_text(html: str, parser: Parser = "lxml", via: Via = "fast", compare: bool = False) -> ParsedPage:
    """Parses a page to text, hidden spans and blocks. `via: fast` uses turbohtml, or BeautifulSoup if
    turbohtml may lose text. On broken pages their texts may differ. `compare` also runs BeautifulSoup on a
    page of up to COMPARE_CHARS, and returns its result if the texts differ. Raises ValueError if `via` is
    fast and `parser` is not lxml; html.parser itself raises ValueError on broken pages."""
    check(parser, via)
    if via == "bs4":
        return _by_soup(html, parser, "bs4")
    page = _by_turbo(html)
    if page is None:
        return _by_soup(html, parser, "fallback")
    wanted = compare and len(html) <= COMPARE_CHARS
    if not wanted and (page.text or not html.strip()):  # markup without any text is always compared
        return page
    reference = _by_soup(html, parser, "fallback")
    return replace(page, way="compared") if page.text == reference.text else reference


def fast_text(html: str) -> str | None:
    """Parses only the text, with turbohtml. Returns None if it may lack text that BeautifulSoup keeps."""
    page = _by_turbo(html, mark=False)
    return None if page is None else page.text


def check(parser: Parser, via: Via) -> None:
    if via == "fast" and parser != "lxml":
        raise ValueError(f"via: fast equals BeautifulSoup with lxml only; with {parser} say `via: bs4`")


def not_html(content: str) -> str | None:
    """Returns a message if `content` is a binary or RTF file read as text, else None."""
    head = content[:_HEAD].lstrip("\ufeff \t\r\n")
    for magic in _MAGIC:
        if head.startswith(magic):
            return f"expected HTML, found a file that starts with {magic!r}"
    strange = len(_CONTROL.findall(head))
    if strange > max(_STRAY, _BINARY_SHARE * len(head)):
        return f"expected HTML, found {strange} control characters in the first {len(head)}"
    return None


def storable(text: str) -> str:
    """Removes NUL, and replaces lone surrogates by U+FFFD, because UTF-8 and tables cannot store them."""
    if "\0" not in text:
        if text.isascii():
            return text
        try:
            text.encode()
            return text
        except UnicodeEncodeError:
            pass  # a lone surrogate, which is replaced below
    return _UNSTORABLE.sub(lambda m: "" if m[0] == "\0" else "\ufffd", text)


def _by_turbo(html: str, mark: bool = True) -> ParsedPage | None:
    """Parses a page with turbohtml. Returns None if turbohtml may lose text that BeautifulSoup keeps."""
    html = html.removeprefix("\ufeff")
    doc = turbohtml.parse(html, positions=True, allow_declarative_shadow_roots=False)
    # Elements that split no word: `<wbr>`, and the `br` and empty `p` that the standard makes of a `</br>`
    # and of an unmatched `</p>`. These two have no position in the source; libxml2 does not make them.
    implied = (e for tag in ("br", "p") for e in doc.select(tag) if e.position is None)
    seams = [*doc.select("wbr"), *implied]
    for element in seams:
        element.decompose()
    if seams:
        doc.select_one("html").normalize()
    dropped = [e for tag in _DROPPED for e in doc.select(tag)]  # turbohtml indexes single tags
    if _loses(doc, html):
        return None
    hiding = []
    if mark:  # only elements with content that are not dropped
        named = [e for tag in (*sorted(NEVER_DRAWN), "dialog") for e in doc.select(tag)]
        styled = [e for e in doc.select("[style],[hidden]") if e.tag not in NEVER_DRAWN and e.tag != "dialog"]
        kept = (e for e in (*named, *styled) if len(e) and e.tag not in _DROPPED)
        above = ((e, (a.attrs for a in e.ancestors if isinstance(a, turbohtml.Element))) for e in kept)
        hiding = [e for e, ancestors in above if hides(e.tag, e.attrs, ancestors)]
    for element in dropped:
        element.decompose()
    for element in hiding:
        element.insert(0, turbohtml.Text(OPEN))
        element.append(turbohtml.Text(CLOSE))
    text = fold(" ".join(doc.stripped_strings))
    if not mark:
        return ParsedPage(text, (), "fast")
    return _marked(text, len(hiding), "fast", html, doc, _turbo_node) or _hostile(_by_turbo(html, mark=False))


def _marked(text: str, marks: int, way: Way, html: str, tree: Any, read: Read) -> ParsedPage | None:
    """Builds a page from a text with `marks` pairs of marks around hidden text. Returns None if the text has
    another number of them: the page itself then contains such characters. If `marks` is 0, does not check."""
    found = unmark(text, marks) if marks else (text, ())
    if found is None:
        return None
    return ParsedPage(*found, way, page_blocks(tree, read, found[0]) if len(html) <= BLOCK_CHARS else ())


def _hostile(plain: ParsedPage | None) -> ParsedPage | None:
    """Returns the page `plain` with its whole text as hidden, since the page itself has mark characters."""
    return plain and replace(plain, hidden=((0, len(plain.text)),) if plain.text else ())


def _turbo_node(node: Any) -> str | Element | None:
    if isinstance(node, turbohtml.Text):
        return None if node.data in (OPEN, CLOSE) else shown(node.data)
    if isinstance(node, turbohtml.Element):
        return node.tag, node.attr("role") or "", node.children
    return ("", "", node.children) if isinstance(node, turbohtml.Document) else None


def _loses(doc: Any, html: str) -> bool:
    """Returns whether the HTML standard's tree may lack text that libxml2 keeps, in one of four cases.

    - The page has frames.
    - After `<script src=x />` the standard reads on to the next end tag; libxml2 ends the script there.
    - A `template` is not closed; libxml2 closes it with its parent element.
    - In a `title` of an svg the standard has elements, and libxml2 has text.
    """
    if doc.select("frameset"):
        return True
    raw = (e for tag in _RAW for e in doc.select(tag) if tag != "script" or e.attr("src") is not None)
    if any("<" in e.text for e in raw) and _SELF_CLOSED.search(html):
        return True
    if doc.select("template") and html.count("<template") != html.count("</template>"):
        return True
    return any(len(e) > 1 for e in doc.select("title"))  # a plain title has one child, its text


def _by_soup(html: str, parser: Parser, way: Way, mark: bool = True) -> ParsedPage:
    from bs4 import BeautifulSoup  # imported here: it takes 40 ms, and the fast way does not need it
    from bs4.element import NavigableString

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as "looks like a URL", "looks like XML"
        soup = BeautifulSoup(storable(html), parser)
    # Tags whose texts a `wbr` cut. bs4's own `smooth` calls itself for each level of a page.
    broken = dict[int, Any]()
    for tag in soup.find_all("wbr"):
        broken[id(tag.parent)] = tag.parent
        tag.unwrap()
    for parent in broken.values():
        for plain, pieces in groupby(list(parent.contents), lambda node: type(node) is NavigableString):
            first, *others = pieces
            if plain and others:
                first.replace_with(NavigableString("".join((first, *others))))
                for piece in others:
                    piece.extract()
    marked = 0
    for tag in soup.find_all(True) if mark else ():
        if tag.contents and hides(tag.name, tag.attrs, (p.attrs for p in tag.parents)):
            tag.insert(0, NavigableString(OPEN))
            tag.append(NavigableString(CLOSE))
            marked += 1
    text = fold(soup.get_text(" ", strip=True))
    page = _marked(text, marked, way, html, soup, _soup_node)
    page = page or _hostile(_by_soup(html, parser, way, mark=False))
    assert page is not None
    return page


def _soup_node(node: Any) -> str | Element | None:
    from bs4.element import CData, NavigableString, Tag  # takes 80 ms, and only the slow way needs it

    if isinstance(node, Tag):
        return node.name, str(node.attrs.get("role", "")), node.children
    # The texts of scripts, comments and ruby have other classes, which `get_text` omits too.
    return shown(str(node)) if type(node) in (NavigableString, CData) and node not in (OPEN, CLOSE) else None


Answer: TypeAlias = ParsedPage | Fault

PROBE = b'["lxml", "fast", false]\n' + b"<p>One of many <b>words</b>.</p>\n" * 3_000
"""Page that takes .02 s, like the slowest real page, to test a child: a machine that cannot parse it within
the limits can parse no page."""


@dataclass(frozen=True, slots=True)
class ParserLimits:
    """Limits of a page in `SandboxedParser`. The largest real page takes .02 s and has 1.6 MB."""

    wall_s: float = 5.0
    cpu_s: float = 2.0
    memory_bytes: int = 1 << 30  # in addition to the child's memory at its start
    page_bytes: int = 20_000_000  # in UTF-8


@dataclass(frozen=True, slots=True)
class ParseJob:
    """Page to parse, with the options of `to_text`."""

    html: bytes  # UTF-8
    parser: Parser = "lxml"
    via: Via = "fast"
    compare: bool = False


class SandboxedParser:
    """Parser of pages in a child process, which starts with the first page. It is thread-safe."""

    def __init__(self, limits: ParserLimits = ParserLimits()) -> None:
        self._limits = limits
        bounds = SandboxLimits(limits.wall_s, limits.cpu_s, limits.memory_bytes)
        self._sandbox = Sandbox(f"{__name__}:answer", bounds, PROBE)

    def run(self, jobs: Sequence[ParseJob], stop: threading.Event | None = None) -> list[Answer]:
        """Parses pages. Returns a page or a fault for each, in order. Reasons of faults: not_html, too_large,
        timeout, memory, crash, unparsable. A page whose comparison times out or crashes is parsed again
        without a comparison. Raises Cancelled, WorkerBroken and Unavailable as `core.sandbox.Sandbox.run`."""
        out: dict[int, Answer] = {}
        most = self._limits.page_bytes
        for i, job in enumerate(jobs):
            if (size := len(job.html)) > most:
                detail = f"expected at most {most} bytes of HTML, found {size}"
                out[i] = Fault("parse", "too_large", detail, transient=False)
            elif why := not_html(job.html[:20_000].decode("utf-8", "replace")):
                out[i] = Fault("parse", "not_html", why, transient=False)
        out |= self._parse({i: j for i, j in enumerate(jobs) if i not in out}, stop)
        # The comparison may have exceeded the limits: try these pages without it.
        compared = {i: a for i, a in out.items() if jobs[i].compare and isinstance(a, Fault)}
        slow = [i for i, refused in compared.items() if refused.reason in ("timeout", "crash")]
        out |= self._parse({i: replace(jobs[i], compare=False) for i in slow}, stop)
        return [out[i] for i in range(len(jobs))]

    def _parse(self, jobs: Mapping[int, ParseJob], stop: threading.Event | None) -> dict[int, Answer]:
        heads = (json.dumps((j.parser, j.via, j.compare)).encode() + b"\n" for j in jobs.values())
        requests = [(head, j.html) for head, j in zip(heads, jobs.values(), strict=True)]
        return dict(zip(jobs, map(_page, self._sandbox.run(requests, stop)), strict=True))

    def parse(self, html: str) -> tuple[str | None, Fault | None]:
        """Parses one page, without a comparison. Returns (text, None) or (None, fault)."""
        (page,) = self.run([ParseJob(storable(html).encode())])
        return (None, page) if isinstance(page, Fault) else (page.text, None)

    def close(self) -> None:
        self._sandbox.close()

    def __enter__(self) -> SandboxedParser:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def answer(request: bytes) -> bytes:
    """Parses one page, in the child. The request is a line of JSON with the options, then the page."""
    head, _, html = request.partition(b"\n")
    page = to_text(html.decode(), *json.loads(head))
    blocks = [(b.start, b.end, b.kind) for b in page.blocks]
    return json.dumps((page.text, page.hidden, page.way, blocks)).encode()


def _page(answer: bytes | Refused) -> Answer:
    if isinstance(answer, Refused):
        reason = "unparsable" if answer.reason == "error" else answer.reason
        return Fault("parse", reason, answer.detail, answer.transient)
    text, hidden, way, blocks = json.loads(answer)
    return ParsedPage(text, tuple((a, b) for a, b in hidden), way, tuple(Block(*b) for b in blocks))
