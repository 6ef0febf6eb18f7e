"""Filler text and markup: sentences about nothing, other languages, scripts, styles, empty markup.

Its people and places are of its own making, so filler neither answers nor contradicts a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from raypipe.synth.world.names import pick, word, words

PATTERNS = (
    ("Readers from {p} sent {n} letters about it last {m}.", "pnm"),
    ("{x}, who has followed the story for {n} years, calls it {a}.", "xna"),
    ("We asked {n} visitors in {p} and most of them found the matter {a}.", "npa"),
    ("There is a {a} debate about this in {p}, and it has gone on since {m}.", "apm"),
    ("A {a} guide by {x} is available at the counter for {n} coins.", "axn"),
    ("Please note that opening hours in {m} may differ from those given above.", "m"),
    ("{x} disagrees and points to a {a} report with {n} pages.", "xan"),
    ("More {a} background can be found in our archive, which holds {n} articles.", "an"),
    ("The weather in {p} was {a} that day, as {x} remembers.", "pax"),
    ("According to {x} the numbers for {m} will be published in {p}.", "xmp"),
    ("It took {n} volunteers and one {a} afternoon to sort the photographs.", "na"),
    ("Subscribe to the newsletter of {p} and get {n} issues a year, free of charge.", "pn"),
    ("Our editor {x} has updated this page in {m}.", "xm"),
    ("Nobody in {p} expected such a {a} turn of events, said {x}.", "pax"),
    ("The article was corrected after {n} readers had pointed out a {a} mistake.", "na"),
    ("In {m} the committee of {p} will meet again to discuss {n} proposals.", "mpn"),
    ("What makes it so {a} is a question that {x} has tried to answer before.", "ax"),
    ("Critics were {a}, the public was not: {n} people signed a petition in {p}.", "anp"),
    ("Here is what {x} wrote from {p}: it is {a}, and it is worth the trip.", "xpa"),
    ("Only {n} copies were printed, each with a {a} cover drawn by {x}.", "nax"),
    ("If you enjoyed this page, share it with {n} friends.", "n"),
    ("The {a} part comes at the end, but {x} advises to begin with the middle.", "ax"),
    ("Between {m} and the end of the year some {n} events are planned around {p}.", "mnp"),
    ("{x} keeps a {a} collection of tickets, maps and {n} postcards.", "xan"),
    ("For those who travel from {p}: the {a} road is closed in {m}.", "pam"),
    ("This is a {a} topic, so comments are moderated by {x}.", "ax"),
    ("A short survey among {n} experts gave no clear result.", "n"),
    ("Last {m} the society of {p} awarded {x} a medal for {a} work.", "mpxa"),
)
WORDS = words(
    "remarkable quiet difficult cheerful doubtful lively complicated popular strange careful "
    "modest brilliant ordinary surprising thorough gloomy festive practical curious helpful"
)
MONTHS = words("January February March April May June July August September October November December")
FOREIGN = {
    "es": words(
        "la el de que y en un una por con para casa camino noche historia canción película "
        "ciudad río año siempre nunca también gente mundo trabajo día agua luz señor niña "
        "corazón mañana"
    ),
    "de": words(
        "der die das und ist nicht ein eine mit für auf Haus Weg Nacht Geschichte Lied Film "
        "Stadt Fluss Jahr immer nie auch Leute Welt Arbeit Tag Wasser Licht schön größer über "
        "früh Straße"
    ),
    "fr": words(
        "le la les de et un une dans pour avec sur maison chemin nuit histoire chanson film "
        "ville fleuve année toujours jamais aussi gens monde travail jour eau lumière été "
        "déjà où garçon cœur"
    ),
    "zh": words(
        "电影 城市 历史 音乐 公司 价格 比赛 球队 河流 山 大学 桥 "
        "今天 昨天 明年 我们 他们 已经 没有 可以 世界 工作 时间 新 大 小"
    ),
    "ar": words(
        "في من على إلى هذا كان مدينة فيلم تاريخ أغنية شركة سعر مباراة فريق نهر جبل جامعة جسر "
        "اليوم أمس عام العالم عمل وقت جديد كبير"
    ),
}
CONSENT = "We and our partners store and access information on a device, such as cookies."

BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
POOL_CHARS = 1_600_000  # longer than any page, so that a slice is always long enough


class Prose:
    """Sentences without meaning, drawn from fixed pools."""

    def __init__(self, rng: Random) -> None:
        self._pools: dict[str, Sequence[str]] = {
            "a": WORDS,
            "m": MONTHS,
            "p": [word(rng, 3) + "sund" for _ in range(60)],
            "x": [f"{word(rng, 2)}o {word(rng, 3)}sen" for _ in range(90)],
        }

    def sentence(self, rng: Random) -> str:
        pattern, slots = PATTERNS[int(rng.random() * len(PATTERNS))]
        pools, n = self._pools, str(2 + int(rng.random() * 900))
        return pattern.format_map({s: n if s == "n" else pick(rng, pools[s]) for s in slots})

    def foreign(self, rng: Random, language: str) -> str:
        pool = FOREIGN[language]
        made = [pick(rng, pool) for _ in range(6 + int(rng.random() * 12))]
        return "".join(made) + "。" if language == "zh" else " ".join(made).capitalize() + "."

    def person(self, rng: Random) -> str:
        return pick(rng, self._pools["x"])


class Bulk:
    """Long strings without visible text, cut to any length: a page of 300 KB holds some 20 KB of text."""

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

    def style(self, rng: Random, chars: int) -> str:
        return f"<style>{self._cut(rng, self._css, chars)}</style>"

    def script(self, rng: Random, chars: int) -> str:
        if rng.random() < 0.3:
            return (
                f'<script type="application/json" id="state">[{self._cut(rng, self._json, chars)}]</script>'
            )
        return f"<script>{self._cut(rng, self._js, chars)}</script>"

    def image(self, rng: Random, chars: int) -> str:
        return f'<img alt="" src="data:image/png;base64,{self._cut(rng, self._pixels, chars)}">'

    def soup(self, rng: Random, chars: int) -> str:
        made, size = [], 0
        while size < chars:
            piece = pick(rng, self._soup)
            made.append(piece)
            size += len(piece)
        return "".join(made)
