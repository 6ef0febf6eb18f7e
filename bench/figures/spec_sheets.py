"""Questions about facts in tables: a page of title, a three-row table and the description for each of 50
installed packages, four questions each, as HTML, Markdown, docx, CSV and PDF.

    python bench/figures/extract.py --sets sheets --against TREE     answers of this tree and of another
    checkout

The texts are what the readers of files and `parse` make of the five kinds. All pages of a kind are searched
together. `bench/figures/extract.py --fit` fits on tables of 25 other packages, as HTML and Markdown, with the
labels
of `FIT`; docx, CSV and PDF have the labels, the questions and the layouts of `REPORT`, which no fit sees. The
third question has its row's own words, the fourth is answered by the title.
"""

from __future__ import annotations

import csv
import io
import re
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any
from xml.sax.saxutils import escape

from extract_sets import Case, Page, Passages, Pool, QuestionSet, html_page, markdown_table, plain_page

from raypipe.core.records import source_id
from raypipe.readers.documents.reader import DocumentReader
from raypipe.text.page_parser import to_text

PACKAGES = """
    agent-detector==2.0.0 aiohappyeyeballs==2.7.1 annotated-types==0.8.0 anyio==4.16.0 attrs==26.1.0
    beautifulsoup4==4.15.0 blinker==1.9.0 cachetools==8.0.1 cbor2==6.2.1 certifi==2026.10.18 cfgv==3.5.0
    cloudpickle==3.1.2 dill==0.4.1 dnspython==2.9.2 einops==0.8.2 email-validator==2.4.0 execnet==2.1.2
    fastar==0.12.0 formulaic==1.2.2 graphql-core==3.3.2 h11==0.16.0 httpcore==1.0.9 httptools==0.9.0
    httpx==0.28.1 idna==3.20 iniconfig==2.3.1 jmespath==1.1.0 joblib==1.6.0 jsonschema==4.26.0 lz4==4.4.5
    markdown-it-py==4.3.0
    mkdocs==1.6.1 mmh3==5.3.1 msgpack==1.2.4 narwhals==2.29.0 packaging==26.3 pathspec==1.1.1 patsy==1.0.3
    pluggy==1.7.0 psutil==7.2.2 pycparser==3.12 PyJWT==2.15.1 python-dotenv==1.2.4 requests==2.34.2
    rich==15.0.0 shellingham==1.5.4 soupsieve==2.10 typer==0.29.2 urllib3==2.8.0 websockets==17.4
"""
FIT_PACKAGES = """
    backrefs==8.3 cobble==0.1.4 depyf==0.20.0 docstring_parser==0.18.0 fastapi-cli==0.0.34 harfile==0.6.0
    huggingface_hub==2.4.0 hypothesis==6.170.15 ijson==3.6.0 importlib_resources==7.1.0 interegular==0.3.3
    lxml==6.1.3
    mammoth==1.13.0 moto==5.2.5 multidict==7.2.1 nodeenv==1.12.0 overrides==7.7.0 peft==0.21.2 pyasn1==0.6.5
    pycountry==26.2.16 referencing==0.37.0 responses==0.26.3 watchdog==7.1.0 wrapt==2.5.2 xmltodict==1.0.4
"""
DESCRIPTION = 4000  # characters of one that a page has: some passages of prose next to the table


@dataclass(frozen=True, slots=True)
class Wording:
    """Labels of the three rows, and the four questions: {} is the package."""

    labels: tuple[str, str, str]
    questions: tuple[str, str, str, str]


FIT = Wording(
    ("Author", "License", "Requires Python"),
    (
        "Who is the author of {}?",
        "Which license does {} have?",
        "Which Python does {} require?",
        "Which version of {} is this?",
    ),
)
REPORT = Wording(
    ("Maintained by", "Terms of use", "Runs on Python"),
    (
        "By whom is {} maintained?",
        "What are the terms of use of {}?",
        "On which Python does {} run?",
        "What is the version of {}?",
    ),
)


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    values: tuple[str, str, str]  # author, licence, Python
    description: str

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


def packages(names: str) -> list[Package]:
    """Reads what these packages, NAME==VERSION, say of themselves. Raises SystemExit for one that is not
    installed."""
    found = []
    for name, _, version in (line.partition("==") for line in names.split()):
        try:
            about: Any = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            sys.exit(f"{name}: expected version {version}, found none: pip install {name}=={version}")
        if about["Version"] != version:
            sys.exit(f"{name}: expected version {version}, found {about['Version']}: pip install it")
        author = about["Author"] or re.sub(r"\s*<.*", "", (about["Author-email"] or "").split(",")[0]).strip(
            ' "'
        )
        classes = [c for c in about.get_all("Classifier") or () if c.startswith("License ::")]
        terms = about["License-Expression"] or about["License"] or ""
        if not terms or "\n" in terms or len(terms) > 40:
            terms = classes[0].rpartition(" :: ")[2]
        values = author, terms, about["Requires-Python"]
        said = str(about.get_payload() or about["Description"])[:DESCRIPTION]
        found.append(Package(name, version, values, said))
    return found


def as_html(some: Sequence[Package], words: Wording, head: str = "td") -> list[tuple[str, bytes]]:
    """A page for each; `head`: tag of a row's first cell, or dt for a list of terms."""
    out = []
    for p in some:
        rows = zip(words.labels, p.values, strict=True)
        page = html_page(p.title, rows, p.description.split("\n\n"), head)
        out.append((f"{p.name}.html", page.encode()))
    return out


def as_markdown(some: Sequence[Package], words: Wording) -> list[tuple[str, bytes]]:
    out = []
    for p in some:
        table = markdown_table(("Property", "Value"), zip(words.labels, p.values, strict=True))
        out.append((f"{p.name}.md", f"# {p.title}\n\n{table}\n\n{p.description}\n".encode()))
    return out


def as_list(some: Sequence[Package], words: Wording) -> list[tuple[str, bytes]]:
    """Writes a Markdown page with a row for each package."""
    table = markdown_table(("Package", *words.labels), ((p.name, *p.values) for p in some))
    return [("packages.md", f"# Packages\n\n{table}\n".encode())]


def as_csv(some: Sequence[Package], words: Wording) -> list[tuple[str, bytes]]:
    """Writes a file with a row for each package, the last cell left out where the description is empty."""
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(("Name", "Version", *words.labels, "Description"))
    rows.writerows((p.name, p.version, *p.values, " ".join(p.description.split())[:200]) for p in some)
    return [("packages.csv", out.getvalue().encode())]


def as_docx(some: Sequence[Package], words: Wording) -> list[tuple[str, bytes]]:
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"

    def paragraph(text: str) -> str:
        return f'<w:p><w:r><w:t xml:space="preserve">{escape(text)}</w:t></w:r></w:p>'

    out = []
    for p in some:
        rows = [("Item", "Detail"), *zip(words.labels, p.values, strict=True)]
        cells = ("".join(f"<w:tc>{paragraph(c)}</w:tc>" for c in row) for row in rows)
        table = f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"
        prose = "".join(paragraph(x) for x in p.description.split("\n\n"))
        body = f"<w:body>{paragraph(p.title)}{table}{prose}</w:body>"
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("word/document.xml", f'<w:document xmlns:w="{space}">{body}</w:document>')
        out.append((f"{p.name}.docx", file.getvalue()))
    return out


def as_pdf(some: Sequence[Package], words: Wording) -> list[tuple[str, bytes]]:
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Flowable, Paragraph, SimpleDocTemplate, Table

    styles, out = getSampleStyleSheet(), []
    for p in some:
        file = io.BytesIO()
        said = [
            Paragraph(escape(x.replace("\n", " ")), styles["BodyText"]) for x in p.description.split("\n\n")
        ]
        rows = [list(row) for row in zip(words.labels, p.values, strict=True)]
        parts: list[Flowable] = [Paragraph(p.title, styles["Title"]), Table(rows, hAlign="LEFT"), *said]
        SimpleDocTemplate(file, invariant=1).build(parts)
        out.append((f"{p.name}.pdf", file.getvalue()))
    return out


def sheets(
    name: str, some: Sequence[Package], words: Wording, files: Sequence[tuple[str, bytes]], last: bool = True
) -> QuestionSet:
    """The questions about some packages over these files; without the `last` where no title answers it."""
    reader, pages = DocumentReader(), dict[str, Page]()
    try:
        for file, data in files:
            text = reader.read(file, data)
            if text.source_kind == "page":
                parsed = to_text(text.content)
                page = Page(parsed.text, parsed.blocks, parsed.hidden)
            else:
                page = plain_page(text.content, titled=True)
            pages[source_id(text.source_kind, text.content)] = page
    finally:
        reader.close()
    passages = Passages()
    pool, cases = Pool(passages.of(s, p.text) for s, p in pages.items()), []
    for p in some:
        golds = (*p.values, p.version)
        for i, (question, gold) in enumerate(zip(words.questions, golds, strict=True)):
            if i < 3 or last:
                said = question.format(p.name)
                cases.append(Case(f"{name}-{p.name}-{i}", said, "", (gold,), pool.best(said), pool))
    return QuestionSet(name, tuple(cases), pages)


def fit_sets() -> list[QuestionSet]:
    """The tables that are fitted on."""
    some = packages(FIT_PACKAGES)
    return [
        sheets("HTML", some, FIT, as_html(some, FIT)),
        sheets("HTML terms", some, FIT, as_html(some, FIT, "dt")),
        sheets("Markdown", some, FIT, as_markdown(some, FIT)),
        sheets("Markdown list", some, FIT, as_list(some, FIT), last=False),
    ]


def test_sets() -> list[QuestionSet]:
    """The tables that are reported: 200 questions of each kind."""
    some = packages(PACKAGES)
    makers: dict[str, tuple[Wording, Callable[..., list[tuple[str, bytes]]]]] = {
        "HTML": (FIT, as_html),
        "Markdown": (FIT, as_markdown),
        "docx": (REPORT, as_docx),
        "CSV": (REPORT, as_csv),
        "PDF": (REPORT, as_pdf),
    }
    return [sheets(name, some, words, make(some, words)) for name, (words, make) in makers.items()]
