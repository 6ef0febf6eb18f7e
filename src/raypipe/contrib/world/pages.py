"""Search results of one question: choice, content and length of the pages.

About a quarter of the citations repeat an earlier citation of the same question. One page in forty is empty.
`ROLES` has the shares of the other pages: some state the answer, unless it is withheld, some are about the
question's subjects and leave the answer out. Others have similar names, a list of the same kind, another
kind, another language, or a shell that needs JavaScript; or they nearly duplicate a page, or are shared by
questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from random import Random

from raypipe.contrib.world.ask.questions import FIRST_ASKED, SynthQuestion
from raypipe.contrib.world.ask.templates import Ref
from raypipe.contrib.world.profile import Fact, Profiles
from raypipe.contrib.world.styles import Bulk, Prose, Style, frame, linked, styles, written
from raypipe.contrib.world.world.names import pick, word, words
from raypipe.contrib.world.world.world import World

REPEATED, EMPTY = 0.26, 0.025  # share of repeated citations; share of empty pages
ROLES = {
    "states": 0.42,
    "leaves_out": 0.18,
    "similar": 0.12,
    "kin": 0.09,
    "other": 0.06,
    "foreign": 0.05,
    "shell": 0.02,
    "twin": 0.03,
    "shared": 0.03,
}
SHARED_PAGES = 300
# Fitted to 36 distinct pages that CRAG cites: median 250 KB, mean 320 KB, 3 KB to 1.5 MB; text 22 KB. A share
# TINY of the pages has a median of 9 KB.
HTML_MEDIAN, HTML_SIGMA, HTML_RANGE, TINY = 235_000, 0.8, (3_000, 1_560_000), 0.03
TEXT_MEDIAN, TEXT_SIGMA = 12_500, 0.9
PROSE_STYLES = words("article wiki forum blog news app faq details broken table list")
LIST_STYLES = words("table list wiki article")
HIDDEN = ('<div style="display:none">{}</div>', "<span hidden>{}</span>", "<template>{}</template>")


@dataclass(frozen=True, slots=True)
class SearchResult:
    page_name: str
    page_url: str
    page_snippet: str
    page_result: str  # HTML, "" in one of forty
    page_last_modified: str  # "" in half of them
    states: bool  # the page states the answer; not in the file
    shared: bool = False  # other questions may cite the page too; not in the file


@dataclass(frozen=True, slots=True)
class _Content:
    """Content of a page, before a style is applied."""

    title: str
    subject: str
    key: str  # sentence that must stay on the page; "": none
    facts: tuple[Fact, ...]
    language: str = "en"
    listing: bool = False


@dataclass(frozen=True, slots=True)
class _Draft:
    content: _Content
    style: Style
    sentences: list[str]
    key: int  # index of the sentence that must stay on the page; -1: none
    number: str  # unique id, part of the page's URL and head
    site: str
    chars: int  # HTML characters of the page


class Pages:
    """Generator of pages about one world. `chars`: HTML characters of a page; None: real sizes."""

    def __init__(self, world: World, chars: int | None) -> None:
        self._seed, self._chars = world.seed, chars
        self._profiles = Profiles(world)
        rng = Random(f"raypipe synth/{world.seed}/pages")
        self._prose, self._bulk = Prose(rng), Bulk(rng)
        self._sites = [
            word(rng, 2).lower() + pick(rng, ("pedia", "news", "hub", "daily", "forum")) for _ in range(80)
        ]
        self._kinds = tuple(self._profiles.refs)

    def results(self, posed: SynthQuestion, count: int) -> list[SearchResult]:
        """Returns `count` search results for a question, best rank first."""
        rng = Random(f"raypipe synth/{self._seed}/results/{posed.number}")
        needed = int(rng.random() ** 1.5 * count)  # the page in this slot states the answer
        rows: list[SearchResult] = []
        for slot in range(count):
            if slot != needed and rows and rng.random() < REPEATED:
                rows.append(pick(rng, rows))
                continue
            role = "states" if slot == needed else rng.choices(list(ROLES), weights=list(ROLES.values()))[0]
            if posed.withheld and role in ("states", "shared"):
                role = "leaves_out"
            row = self._result(rng, posed, slot, role, rows)
            if slot != needed and rng.random() < EMPTY:
                row = replace(row, page_result="")
            rows.append(row)
        return rows

    def _result(
        self, rng: Random, posed: SynthQuestion, slot: int, role: str, rows: list[SearchResult]
    ) -> SearchResult:
        number = f"{self._seed}-{posed.number}-{slot}"
        if role == "twin":
            first = next((r for r in rows if r.page_result), None)
            if first is None:
                return self._result(rng, posed, slot, "kin", rows)
            # A second fetch of the first page: only its number and its view counter differ.
            extra = f'<div class="counter" data-request="{number}">{int(rng.random() * 9999)} views</div>'
            url = f"{first.page_url}?ref={number}"
            return replace(first, page_url=url, page_result=first.page_result + extra, shared=False)
        if role == "shared":
            return self._shared(int(rng.random() * SHARED_PAGES))
        return self._page(rng, self._content(rng, posed, role), number, posed.now.day, role)

    def _shared(self, number: int) -> SearchResult:
        """Returns a list page that several questions cite. It depends only on the seed and its number."""
        rng = Random(f"raypipe synth/{self._seed}/shared/{number}")
        kind = pick(rng, self._kinds)
        content = self._list_of(rng, pick(rng, self._profiles.refs[kind]), frozenset())
        page = self._page(rng, content, f"{self._seed}-shared-{number}", FIRST_ASKED, "kin")
        return replace(page, shared=True)

    def _content(self, rng: Random, posed: SynthQuestion, role: str) -> _Content:
        asked, subject = posed.asked, pick(rng, self._subjects(posed))
        if role in ("states", "leaves_out"):
            key = pick(rng, asked.said) if role == "states" else ""
            facts = self._profiles.of(subject)
            if role == "leaves_out":
                facts = tuple(f for f in facts if f.key not in asked.tells)
            content = _Content(self._prose.title(rng, subject[1]), subject[1], key, facts)
        elif role == "foreign":
            content = _Content(subject[1], subject[1], "", (), pick(rng, list(self._prose.languages)))
        elif role == "shell":
            content = _Content(f"Just a moment... {subject[1]}", subject[1], "", ())
        elif role == "kin":
            content = self._list_of(rng, subject, frozenset(asked.about))
        else:
            alike = self._profiles.similar(subject) if role == "similar" else []
            kind = subject[0] if role == "similar" else pick(rng, self._kinds)
            other = pick(rng, alike or self._profiles.refs[kind])
            content = _Content(self._prose.title(rng, other[1]), other[1], "", self._profiles.of(other))
        return _withheld(content, posed) if posed.withheld else content

    def _subjects(self, posed: SynthQuestion) -> Sequence[Ref]:
        """Returns the possible subjects of a page. If the answer is withheld, no subject is the answer."""
        about, answers = posed.asked.about, (posed.asked.answer, *posed.asked.alternatives)
        if not posed.withheld:
            return about
        given = [r for r in about if r[1].lower() in posed.text or r[1].lower() not in answers]
        return given or [r for r in self._profiles.refs[about[0][0]] if r not in about]

    def _list_of(self, rng: Random, like: Ref, without: frozenset[Ref]) -> _Content:
        """Returns a list page: one fact about each of many entities of the kind of `like`."""
        refs, facts = self._profiles.refs[like[0]], []
        for _ in range(8 if self._chars else 60):
            ref = pick(rng, refs)
            if ref not in without:
                f = pick(rng, self._profiles.of(ref))
                facts.append(Fact(f.key, ref[1], f.value, f"{ref[1]}: {f.sentence}"))
        plural = {"person": "people", "company": "companies", "entity": "names"}.get(like[0], f"{like[0]}s")
        title = f"{len(facts)} {plural} you should know"
        return _Content(title, facts[0].label if facts else title, "", tuple(facts), listing=True)

    def _sizes(self, rng: Random) -> tuple[int, int]:
        if self._chars is not None:
            html = int(self._chars * (0.8 + 0.4 * rng.random()))
            return html, int(html * (0.35 + 0.25 * rng.random()))
        low, high = HTML_RANGE
        median = 9_000 if rng.random() < TINY else HTML_MEDIAN
        html = int(min(high, max(low, rng.lognormvariate(0, HTML_SIGMA) * median)))
        return html, int(min(html * 0.45, rng.lognormvariate(0, TEXT_SIGMA) * TEXT_MEDIAN))

    def _sentences(self, rng: Random, content: _Content, chars: int) -> tuple[list[str], int]:
        """Returns facts and filler of about `chars` characters, and the key sentence's index (-1: none)."""
        facts, made, size = [f.sentence for f in content.facts], list[str](), 0
        if not content.listing:
            facts = rng.sample(facts, min(len(facts), 4 if self._chars else 40))
        for fact in facts:
            if size >= chars * 0.7:
                break
            made.append(fact)
            size += len(fact)
        foreign = content.language if content.language in self._prose.languages else ""
        while size < chars:
            text = self._prose.foreign(rng, foreign) if foreign else self._prose.sentence(rng)
            made.insert(int(rng.random() * (len(made) + 1)), text)
            size += len(text)
        if not content.key:
            return made, -1
        at = int(rng.random() * min(len(made) + 1, 6 if self._chars else len(made) + 1))
        made.insert(at, content.key)
        return made, at

    def _page(self, rng: Random, content: _Content, number: str, day: date, role: str) -> SearchResult:
        html, text = self._sizes(rng)
        site = pick(rng, self._sites)
        sentences, key = ([], -1) if role == "shell" else self._sentences(rng, content, text)
        kind = "app" if role == "shell" else pick(rng, LIST_STYLES if content.listing else PROSE_STYLES)
        draft = _Draft(content, styles()[kind], sentences, key, number, site, html)
        page = self._render(rng, draft)
        modified = ""
        if rng.random() < 0.5:
            when = day - timedelta(days=1 + int(rng.expovariate(1 / 200)))
            modified = f"{when:%a, %d %b %Y} {int(rng.random() * 24):02d}:{int(rng.random() * 60):02d}:07 GMT"
        slug = content.subject.lower().replace(" ", "-")
        url = f"https://www.{site}.example/{role[0]}/{slug}-{number}"
        name = f"{content.title} - {site.capitalize()}"
        stated = role == "states" and bool(content.key)
        return SearchResult(name, url, self._snippet(rng, draft), page, modified, stated)

    def _snippet(self, rng: Random, draft: _Draft) -> str:
        """Returns successive sentences of the page. Three of five snippets begin with its key sentence."""
        if not draft.sentences or rng.random() < 0.02:
            return ""
        chars = self._chars * (0.08 + 0.12 * rng.random()) if self._chars else 400 + 1_800 * rng.random()
        quoted = draft.key >= 0 and rng.random() < 0.6
        start = draft.key if quoted else int(rng.random() * len(draft.sentences))
        taken, size = [], 0.0
        for sentence in draft.sentences[start:]:
            taken.append(sentence)
            size += len(sentence) + 1
            if size >= chars:
                break
        return " ".join(taken)

    def _blocks(self, rng: Random, draft: _Draft) -> Iterator[tuple[str, bool]]:
        """Yields the blocks of the content, each with a flag: the block holds the key sentence."""
        ascii_only, position, i = rng.random() < 0.12, 0, 0
        subject = written(rng, draft.content.subject, ascii_only)
        while i < len(draft.sentences):
            many = 1 + int(rng.random() * draft.style.sentences)
            text = written(rng, " ".join(draft.sentences[i : i + many]), ascii_only)
            if rng.random() < 0.3:
                text = linked(rng, text, subject)
            yield draft.style.block(rng, position, text), i <= draft.key < i + many
            position, i = position + 1, i + many

    def _render(self, rng: Random, draft: _Draft) -> str:
        small, content, style = self._chars is not None, draft.content, draft.style
        title = written(rng, content.title, False)
        rows = [
            (written(rng, f.label, False), written(rng, f.value, False))
            for f in content.facts[: 3 if small else 14]
        ]
        head, foot = frame(style, title, draft.number, content.language, draft.site, small)
        before = style.opening(rng, title, rows)
        room = draft.chars - len(head) - len(before) - len(style.after) - len(foot)
        blocks = list(self._blocks(rng, draft))
        size = sum(len(b) for b, _ in blocks)
        for n in range(len(blocks) - 1, -1, -1):
            if size > room and not blocks[n][1]:
                size -= len(blocks[n][0])
                del blocks[n]
        fill = self._bulk.fill(rng, room - size)
        middle = len(blocks) // 2
        body = [b for b, _ in blocks]
        if room - size > 300 and rng.random() < 0.15:
            body.append(pick(rng, HIDDEN).format(self._prose.sentence(rng)))
        parts = [head, fill[0], before, *body[:middle], fill[1], *body[middle:], style.after, fill[2], foot]
        return "".join(parts)


def _withheld(content: _Content, posed: SynthQuestion) -> _Content:
    """Removes the key sentence, and facts that tell the answer, hold it by chance or name another subject."""
    subjects = [name for _, name in posed.asked.about if name != content.subject]
    answers = [a for a in (posed.asked.answer, *posed.asked.alternatives) if len(a) > 3]

    def silent(fact: Fact) -> bool:
        text = f"{fact.label} {fact.value} {fact.sentence}"
        lower = text.lower()
        return not any(s in text for s in subjects) and not any(a in lower for a in answers)

    facts = tuple(f for f in content.facts if f.key not in posed.asked.tells and silent(f))
    return replace(content, key="", facts=facts)
