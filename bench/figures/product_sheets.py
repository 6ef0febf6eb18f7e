"""Questions about invented products: data sheets, and lists, with other words than the label's.

Each product has eight of fourteen facts, under one of several labels; a question has other words than the
label as often as the same. Two products share a name and differ by its number. In a sheet of its own a
product need not be named: "How long is the warranty?"
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from extract_sets import Case, Page, Passages, Pool, QuestionSet, html_page, markdown_table, plain_page

from raypipe.core.records import source_id
from raypipe.text.page_parser import to_text

SEED = 11
PRODUCTS, FACTS = 24, 8  # of them, and of each


@dataclass(frozen=True, slots=True)
class Property:
    labels: tuple[str, ...]
    values: str  # a format with {n}, a number from `least` to `most`; or names, parted by commas
    least: int
    most: int
    questions: tuple[str, ...]  # {} is the product


PROPERTIES = (
    Property(
        ("Weight", "Net weight", "Mass"),
        "{n} kg",
        2,
        90,
        ("How much does {} weigh?", "What is the weight of {}?", "How heavy is {}?"),
    ),
    Property(
        ("Warranty", "Guarantee", "Warranty period"),
        "{n} months",
        12,
        60,
        (
            "How long is the warranty of {}?",
            "For how long is {} guaranteed?",
            "When does the warranty of {} end?",
        ),
    ),
    Property(
        ("Power consumption", "Rated power", "Power"),
        "{n} W",
        40,
        2400,
        ("How much power does {} use?", "How many watts does {} draw?", "What is the rated power of {}?"),
    ),
    Property(
        ("Dimensions", "Size (W x D x H)", "Outer dimensions"),
        "{n} x 210 x 180 mm",
        200,
        900,
        ("How big is {}?", "What are the dimensions of {}?", "How much space does {} take?"),
    ),
    Property(
        ("Price", "List price", "Recommended price"),
        "{n} EUR",
        49,
        4000,
        ("How much does {} cost?", "What is the price of {}?", "What do I pay for {}?"),
    ),
    Property(
        ("Manufacturer", "Made by", "Producer"),
        "Roe Ltd,Lindt & Sons,Orbal,Vekto GmbH,Harrow Works,Aust Oy",
        0,
        0,
        ("Who makes {}?", "Who is the manufacturer of {}?", "Which company builds {}?"),
    ),
    Property(
        ("Released", "On the market since", "Introduced"),
        "March {n}",
        1998,
        2024,
        ("When did {} come out?", "When was {} released?", "Since when is {} sold?"),
    ),
    Property(
        ("Country of origin", "Origin", "Made in"),
        "Portugal,Denmark,Chile,Vietnam,Estonia,Ghana",
        0,
        0,
        ("Where is {} made?", "In which country is {} built?", "What is the country of origin of {}?"),
    ),
    Property(
        ("Operating temperature", "Ambient temperature", "Temperature range"),
        "-10 to {n} °C",
        30,
        70,
        (
            "At which temperatures may {} be used?",
            "How hot may it be where {} runs?",
            "What is the operating temperature of {}?",
        ),
    ),
    Property(
        ("Battery life", "Runtime", "Operating time"),
        "up to {n} hours",
        3,
        48,
        (
            "How long does the battery of {} last?",
            "What is the runtime of {}?",
            "How long does {} run on a charge?",
        ),
    ),
    Property(
        ("Noise level", "Sound pressure", "Noise"),
        "{n} dB",
        25,
        95,
        ("How loud is {}?", "What is the noise level of {}?", "How much noise does {} make?"),
    ),
    Property(
        ("Order number", "Article no.", "Part number"),
        "RX-{n}",
        1000,
        9999,
        (
            "What is the order number of {}?",
            "Under which number is {} ordered?",
            "Which article number does {} have?",
        ),
    ),
    Property(
        ("Delivery time", "Lead time", "Delivery"),
        "{n} working days",
        2,
        40,
        (
            "How long does the delivery of {} take?",
            "How fast is {} delivered?",
            "When will {} arrive after an order?",
        ),
    ),
    Property(
        ("Protection class", "Ingress protection", "IP rating"),
        "IP20,IP44,IP54,IP65,IP67,IP68",
        0,
        0,
        (
            "Which protection class does {} have?",
            "How well is {} protected against water?",
            "What is the IP rating of {}?",
        ),
    ),
)
KINDS = "pump,drill,lamp,mixer,camera,scale,router,heater"
NAMES = "Kestrel,Brio,Ondal,Tarvo,Mistral,Quill,Sorrel,Fenn,Halda,Jasmo,Lumo,Pico"
PROSE = (
    "The {} is made for workshops and for homes.",
    "It stands safely on any even floor.",
    "Keep the {} dry and clean it with a soft cloth.",
    "A hose and a set of screws are supplied with it.",
    "Read the manual before you use the {} for the first time.",
    "Spare parts are sold by every dealer.",
)


@dataclass(frozen=True, slots=True)
class Product:
    name: str
    facts: tuple[tuple[int, str], ...]  # place in PROPERTIES, and value


def products() -> list[Product]:
    draw = random.Random(SEED)
    made = []
    for i in range(PRODUCTS):
        name = f"{NAMES.split(',')[i // 2]} {20 + 10 * (i % 2)}"  # two of a name: the number tells them apart
        name = f"{name} {KINDS.split(',')[i // 2 % 8]}"
        some = sorted(draw.sample(range(len(PROPERTIES)), FACTS))
        facts = []
        for at in some:
            p = PROPERTIES[at]
            value = (
                p.values.format(n=draw.randint(p.least, p.most))
                if p.most
                else draw.choice(p.values.split(","))
            )
            facts.append((at, value))
        made.append(Product(name, tuple(facts)))
    return made


def as_page(p: Product, number: int, tag: str) -> Page:
    prose = [s.format(p.name) for s in PROSE[number % 3 :: 2]]
    rows = [(PROPERTIES[at].labels[(number + at) % 3], value) for at, value in p.facts]
    if tag == "md":
        table = markdown_table(("Property", "Value"), rows)
        return plain_page(f"# {p.name}\n\n{prose[0]}\n\n{table}\n\n{' '.join(prose[1:])}\n", titled=True)
    if tag == "colon":
        lines = "\n".join(f"{a}: {b}" for a, b in rows)
        return plain_page(f"{p.name}\n\n{lines}\n\n{' '.join(prose)}\n", titled=True)
    parsed = to_text(html_page(p.name, rows, prose, tag))
    return Page(parsed.text, parsed.blocks, parsed.hidden)


def as_list(some: Sequence[Product], columns: Sequence[int]) -> Page:
    """Writes a table with a row for each product; what it does not have is an empty cell."""
    names = "Product", "Code", *(PROPERTIES[c].labels[0] for c in columns)
    rows = [(p.name, f"K{i + 10}", *(dict(p.facts).get(c, "") for c in columns)) for i, p in enumerate(some)]
    table = markdown_table(names, rows)
    return plain_page(f"# Products\n\n{table}\n", titled=True)


def sets() -> list[QuestionSet]:
    """Sheets, all searched together, and each alone, half of the products not named."""
    some = products()
    sheets = [as_page(p, i, ("td", "md", "th", "colon")[i % 4]) for i, p in enumerate(some)]
    return [_asked("sheets", some, sheets, alone=False), _asked("single sheets", some, sheets, alone=True)]


def _id(page: Page) -> str:
    return source_id("document", page.text)


def _asked(name: str, some: Sequence[Product], sheets: Sequence[Page], alone: bool) -> QuestionSet:
    passages = Passages()
    of = [passages.of(_id(s), s.text) for s in sheets]
    whole, cases = Pool(of), list[Case]()
    for i, p in enumerate(some):
        pool, has = Pool([of[i]]) if alone else whole, dict(p.facts)
        for at, asked in enumerate(PROPERTIES):
            if at not in has and (i + at) % 3:
                continue  # a third of what a sheet does not say is asked, too
            text = asked.questions[(i + 2 * at + alone) % 3]
            named = "it" if alone and (i + at) % 2 else f"the {p.name}"
            text = text.format(named).replace(" of it", "") if named == "it" else text.format(named)
            golds = (has[at],) if at in has else ()
            order = tuple(of[i][0][:5]) if alone else pool.best(text)
            cases.append(Case(f"{name}-{i}-{at}", text, "", golds, order, pool))
    return QuestionSet(name, tuple(cases), {_id(s): s for s in sheets})


def product_list() -> QuestionSet:
    """Three tables with a row for each product, which the fit sees."""
    some, passages, cases, pages = products(), Passages(), list[Case](), dict[str, Page]()
    for columns in ((0, 1, 4, 12), (2, 5, 6, 11), (3, 7, 8, 10)):
        page = as_list(some, columns)
        pages[_id(page)] = page
    pool = Pool(passages.of(s, p.text) for s, p in pages.items())
    for i, p in enumerate(some):
        has = dict(p.facts)
        for at, asked in enumerate(PROPERTIES):
            if at not in (9, 13) and (at in has or (i + at) % 4 == 0):
                text = asked.questions[(i + 2 * at) % 3].format(f"the {p.name}")
                golds = (has[at],) if at in has else ()
                cases.append(Case(f"list-{i}-{at}", text, "", golds, pool.best(text), pool))
    return QuestionSet("list", tuple(cases), pages)
