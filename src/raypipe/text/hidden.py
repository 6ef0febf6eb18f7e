"""Hidden text of a page: which elements hide theirs, and its spans.

Reads attributes only (`hidden`, `style`, `bgcolor`) and elements that a browser never draws. It does not
resolve style sheets, so text that a class hides is not found. Text that `aria-hidden` keeps from screen
readers is drawn on the screen and is not hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain

from raypipe.core.records import Span

NEVER_DRAWN = frozenset({"audio", "canvas", "datalist", "iframe", "noembed", "noframes", "noscript", "video"})
"""Their text is for browsers without the feature. `dialog` without `open` is the ninth."""

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""Put around hidden text while a page is read. Unicode keeps both out of interchanged text, for such use."""

_MARK = re.compile(f"([{OPEN}{CLOSE}])")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+))\s*([a-z%]*)")
_COLOUR = re.compile(r"#[0-9a-f]{3,8}\b|rgba?\([^)]*\)|(?<![\w-])[a-z]+(?![\w(-])")
_NOT_COLOURS = {"none", "inherit", "initial", "unset", "url", "repeat", "fixed", "scroll", "center"}
_FAR = -100.0  # in any unit: -100 % is off the screen, and real off-screen text stands at -999 px or more


def hides(tag: str, attrs: Mapping[str, object], ancestors: Iterator[Mapping[str, object]]) -> bool:
    """True if an element's text is not shown. `ancestors` are the attributes of its ancestors, nearest first;
    they are read only where the element sets a colour and no background."""
    if "hidden" in attrs or tag in NEVER_DRAWN or (tag == "dialog" and "open" not in attrs):
        return True
    if not attrs.get("style"):
        return False
    gone, colour, _ = _read(str(attrs["style"]))
    if gone or not colour:
        return gone
    return colour == next(filter(None, map(_ground, chain([attrs], ancestors))), "ffffff")


def _ground(attrs: Mapping[str, object]) -> str:
    """The background that an element sets, or ""."""
    return _read(str(attrs.get("style") or ""))[2] or _named(attrs.get("bgcolor"))


def unmark(marked: str, elements: int) -> tuple[str, tuple[Span, ...]] | None:
    """The text without its marks, and the spans that were between them, ascending and disjoint.

    `marked` is white-space folded with every mark a word of its own. None if it does not hold exactly one
    pair for each of the `elements`: then the page itself carries such characters, and marks prove nothing.
    """
    if marked.count(OPEN) != elements or marked.count(CLOSE) != elements:
        return None
    kept: list[str] = []
    spans: list[Span] = []
    at, depth, joined = 0, 0, False  # joined: nothing shown since the last hidden text
    for piece in _MARK.split(marked):
        if piece in (OPEN, CLOSE):
            depth += 1 if piece == OPEN else -1
            continue
        if not (piece := piece.strip()):
            continue
        start = at + bool(kept)
        at = start + len(piece)
        kept.append(piece)
        if depth > 0:
            spans[-1:] = [(spans[-1][0], at)] if joined else [*spans[-1:], (start, at)]
        joined = depth > 0
    return " ".join(kept), tuple(spans)


@lru_cache(maxsize=4096)  # a page repeats a few styles hundreds of times
def _read(style: str) -> tuple[bool, str, str]:
    """Of a style attribute: whether it hides by itself, its text colour, its background ("" if not set)."""
    rules: dict[str, str] = {}
    for rule in _COMMENT.sub("", style).lower().split(";"):
        name, _, value = rule.partition(":")
        rules[name.strip()] = value.replace("!important", "").strip()
    colour = _named(rules.get("color"))
    ground = _named(rules.get("background-color")) or _named(rules.get("background"))
    return _vanishes(rules) or colour == "transparent", colour, "" if ground == "transparent" else ground


def _vanishes(rules: Mapping[str, str]) -> bool:
    """True if the declarations alone take the text from the screen."""
    if rules.get("display") == "none" or rules.get("visibility") in ("hidden", "collapse"):
        return True
    # the number that each value begins with, whatever its unit
    numbers = {name: float(found[1]) for name, value in rules.items() if (found := _NUMBER.fullmatch(value))}
    placed = rules.get("position") in ("absolute", "fixed")
    away = ("text-indent", *(("left", "top", "right", "bottom") if placed else ()))
    boxes = ("width", "height", "max-width", "max-height") if rules.get("overflow") == "hidden" else ()
    return (
        rules.get("content-visibility") == "hidden"
        or any(numbers.get(name) == 0 for name in ("opacity", "font-size", *boxes))
        or any(numbers.get(name, 0) <= _FAR for name in away)
        or (placed and rules.get("clip", "").startswith(("rect(0", "rect(1px")))
        or rules.get("clip-path", "").startswith(("inset(50%", "inset(100%"))
    )


def _named(value: object) -> str:
    """A colour in one spelling: six hex digits, "transparent", a name, or "picture" for no single colour."""
    if not value:
        return ""
    text = str(value).strip().lower()
    if "url(" in text or "gradient(" in text:
        return "picture"
    found = next((c for c in _COLOUR.findall(text) if c not in _NOT_COLOURS), "")
    if found.startswith("#"):
        digits = found[1:]
        if len(digits) in (4, 8):
            if set(digits[len(digits) * 3 // 4 :]) == {"0"}:
                return "transparent"
            digits = digits[: len(digits) * 3 // 4]
        return "".join(c * 2 for c in digits) if len(digits) == 3 else digits
    if found.startswith("rgb"):
        parts = re.findall(r"[\d.]+", found)
        if len(parts) == 4 and float(parts[3]) == 0:
            return "transparent"
        return "".join(f"{min(int(float(p)), 255):02x}" for p in parts[:3])
    return {"white": "ffffff", "black": "000000"}.get(found, found)
