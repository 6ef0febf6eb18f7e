"""The report as one HTML file that loads nothing from the network. Knows what the report's JSON holds.

Everything that came from data (questions, answers, urls, names) goes through Jinja's escaping; the page's own
policy forbids scripts and requests, should anything slip through.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from raypipe.core.records import Hit, Layout, Quote, Span
from raypipe.metrics.crag import Verdict
from raypipe.report import plot
from raypipe.text.places import place

SHOWN = 500  # questions on the page, some 4 kB each with their passages; all are in predictions.jsonl
HITS_SHOWN = 3  # passages under a question
_PATH = re.compile(r"[\w.~%-][\w.~%/-]*(?:#page=\d+)?", re.ASCII)
MOST = 12  # values of a label shown to people: CRAG's own have at most 8; all of them are in report.json


@dataclass(frozen=True, slots=True)
class ReportPassage:
    """One passage under a question."""

    url: str | None  # None: no citation brought it
    span: Span  # in its source's parsed text
    scores: Mapping[str, float]
    before: str  # what it says, in three pieces: up to the cited quote,
    quote: str  # the quote, "" where none is cited from here,
    after: str  # and the rest
    where: str = ""  # page and section of a document of a folder

    @classmethod
    def of(
        cls, hit: Hit, url: str | None, text: str, cited: Sequence[Quote], layout: Layout | None = None
    ) -> ReportPassage:
        """A hit with its text. Of the quotes that an answer cites, the first that lies within it is marked.

        >>> ReportPassage.of(Hit("s:5-12", "s", (5, 12)), None, "abcdefg", [Quote("s", (7, 9))])
        ReportPassage(url=None, span=(5, 12), scores={}, before='ab', quote='cd', after='efg', where='')
        """
        start, end = hit.span
        inside = [c.span for c in cited if c.source == hit.source and start <= c.span[0] and c.span[1] <= end]
        a, b = (inside[0][0] - start, inside[0][1] - start) if inside else (len(text), len(text))
        where = ""
        if layout is not None:
            stands = place(layout, inside[0] if inside else hit.span)
            url, where = stands.url, ", ".join(x for x in (stands.page, stands.section) if x)
        return cls(url, hit.span, hit.scores, text[:a], text[a:b], text[b:], where)


@dataclass(frozen=True, slots=True)
class ShownQuestion:
    """What the page shows of one question, without what is right."""

    id: str
    query: str
    answer: str | None  # None: it failed
    origin: str  # name of the reply that the answer came from
    hits: int  # passages that were found
    passages: tuple[ReportPassage, ...]  # the best HITS_SHOWN of them
    quotes: tuple[str, ...]  # what the answer cites and no passage shows marked, word for word
    abstained: bool = False  # then what is cited is the near miss


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """One question as the page shows it."""

    shown: ShownQuestion
    truths: tuple[str, ...]  # () where the dataset has none
    verdict: Verdict | None  # None where there is no truth
    values: Mapping[str, float] = field(default_factory=dict)  # measure -> value


def render(
    report: Mapping[str, Any], results: Sequence[QuestionResult], blocks: Sequence[str] = ("verdicts",)
) -> str:
    """The page of a report (`report.to_json`) and the questions to show. `blocks`: what the kind of the data
    shows, `measures` and `verdicts`."""
    from jinja2 import Environment, StrictUndefined  # 20 ms that `score` does without

    env = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    slices, omitted = told_apart(report["slices"])
    env.filters.update(signed=signed, share=share, seconds=seconds, linkable=linkable, measured=measured)
    text = resources.files("raypipe.report").joinpath("page.html").read_text(encoding="utf-8")
    return env.from_string(text).render(
        r=report,
        blocks=blocks,
        lead=next((m for m in report["measures"] if m["measure"] == report["lead"]), None),
        measure_slices=told_apart(report["measure_slices"])[0],
        slices=slices,
        omitted=omitted,
        results=results,
        plot=plot,
        segments=plot.segments(report),
        dots=plot.dots(report, slices),
        bars=plot.bars(report["steps"]),
        seen=fit_lines(report),
    )


def fit_lines(report: Mapping[str, Any]) -> list[str]:
    """What scores rest on that a fit has seen, and what the other questions say."""
    lines = [
        f"seen: {f['seen']} of {f['of']} questions were among the {f['n']} that {f['step']} was fitted on "
        f"({f['split']}): their scores are too good"
        for f in report["fits"]
        if f["seen"]
    ]
    if (rest := report["unseen"]) is not None:
        within = (
            f", 95 % {measured(rest['interval'][0])} to {measured(rest['interval'][1])}"
            if rest["interval"]
            else ""
        )
        lines.append(
            f"not seen: {rest['measure']} {measured(rest['mean'])} on the other {rest['scored']}{within}"
        )
    return lines


def told_apart(slices: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], dict[str, int]]:
    """The slices to show, and label -> its values for each omitted label. A label with one value says what
    all questions together say, one with very many drowns the others."""
    sizes = Counter(s["label"] for s in slices)
    shown = {label for label, values in sizes.items() if 1 < values <= MOST}
    return [s for s in slices if s["label"] in shown], {k: n for k, n in sizes.items() if k not in shown}


def signed(score: float | None) -> str:
    """A score in -1..1 for people."""
    return "not scored" if score is None else f"{score:+.3f}"


def measured(value: float | None) -> str:
    """The mean of a measure for people."""
    return "not scored" if value is None else f"{value:.3f}"


def share(value: float | None) -> str:
    """A share in 0..1 for people."""
    return "not scored" if value is None else f"{100 * value:.1f} %"


def seconds(value: float) -> str:
    """A duration for people.

    >>> seconds(7.25), seconds(75), seconds(3725)
    ('7.2 s', '1:15 min', '1:02:05 h')
    """
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02} h" if hours else f"{minutes}:{rest:02} min"


def linkable(url: str | None) -> bool:
    """Whether a url may become a link: only the web's own kinds, never `javascript:`, and paths of files in a
    folder, whose names are quoted.

    >>> linkable("https://a.org/b"), linkable("javascript:x"), linkable("a/b%20c.pdf#page=7")
    (True, False, True)
    """
    return url is not None and (url.lower().startswith(("http://", "https://")) or bool(_PATH.fullmatch(url)))
