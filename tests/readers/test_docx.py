"""Docx files as other programs write them: names of parts, numbers of paragraphs, embedded pages."""

import io
import zipfile
from dataclasses import replace

import papers
import pytest

from raypipe.readers.documents import docx
from raypipe.readers.documents.walk import file_kind
from raypipe.readers.rows import DOCUMENT_LIMITS, UnusableLine

TYPE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
R = f'xmlns:r="{TYPE}"'


def relations(**targets):
    """The XML of relations: kind -> target; the id of each is its kind."""
    found = "".join(
        f'<Relationship Id="{k}" Type="{TYPE}/{k}" Target="{target}"/>' for k, target in targets.items()
    )
    return f"<Relationships xmlns='http://schemas.openxmlformats.org/package/2006/relationships'>{found}</Relationships>"


def text(data):
    try:
        return "\n".join(text for _, text in docx.read(data)["sections"])
    except UnusableLine as e:
        return [e.fault.reason, e.fault.detail]


@pytest.mark.parametrize(
    ("target", "name", "styles"),
    [
        ("/word/document2.xml", "word/document2.xml", "styles2.xml"),
        ("word/document.xml", "Word/Document.xml", "styles.xml"),
        ("word\\document.xml", "word\\document.xml", "/word/styles.xml"),
        ("main%20part.xml", "main part.xml", "look/styles.xml"),
    ],
)
def test_parts_are_found_by_relations_whatever_their_names(target, name, styles):
    folder = name.replace("\\", "/").rpartition("/")[0]
    base = name.replace("\\", "/").rpartition("/")[2]
    rels = f"{folder}/_rels/{base}.rels" if folder else f"_rels/{base}.rels"
    at = styles.lstrip("/") if styles.startswith("/") or not folder else f"{folder}/{styles}"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("_rels/.rels", relations(officeDocument=target))
        kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
        archive.writestr(
            "[Content_Types].xml", f'<Types><Override PartName="/x" ContentType="{kind}"/></Types>'
        )
        body = papers.par(papers.run("Said."), style="H1")
        archive.writestr(name, f"<w:document {papers.W}><w:body>{body}</w:body></w:document>")
        archive.writestr(rels, relations(styles=styles))
        archive.writestr(at, f"<w:styles {papers.W}>{papers.STYLES}</w:styles>")
    assert file_kind("a.docx", out.getvalue()) == "docx"
    assert docx.read(out.getvalue())["sections"] == [("Said.", "Said.")]


def cell(said, marks=""):
    return f"<w:tc><w:tcPr>{marks}</w:tcPr>{papers.par(papers.run(said))}</w:tc>"


DOWN, BELOW, WIDE = '<w:vMerge w:val="restart"/>', "<w:vMerge/>", '<w:gridSpan w:val="2"/>'
FIRST, NEXT = '<w:hMerge w:val="restart"/>', '<w:hMerge w:val="continue"/>'
LONG = "A note that stands over both of the rows and is far too long to be the label of either of them."


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [
                [cell("N", DOWN), cell("Oslo")],
                [cell("", BELOW), cell("Roros")],
                [cell("S"), cell("Rome")],
                [cell("", BELOW), cell("Bari")],
            ],
            ["| N | Oslo |", "| N | Roros |", "| S | Rome |", "|  | Bari |"],
        ),
        (
            [[cell("", DOWN), cell("2023", WIDE)], [cell("", BELOW), cell("Q1"), cell("Q2")]],
            ["|  | 2023 | 2023 |", "|  | Q1 | Q2 |"],
        ),
        (
            [[cell("Sales", WIDE), cell("x", DOWN)], [cell("a"), cell("b"), cell("", BELOW)]],
            ["| Sales | Sales | x |", "| a | b | x |"],
        ),
        ([[cell("All of 2023", WIDE)], [cell("a"), cell("b")]], ["| All of 2023 |", "| a | b |"]),
        ([[cell("a", FIRST), cell("", NEXT), cell("b")]], ["| a | a | b |"]),
        (
            [[cell(LONG, DOWN + WIDE), cell("1")], [cell("", BELOW + WIDE), cell("2")]],
            [f"| {LONG} |  | 1 |", "|  |  | 2 |"],
        ),
        ([[cell("a", '<w:gridSpan w:val="4000000000"/>'), cell("b")]], ["| " + "a | " * 63 + "b |"]),
    ],
)
def test_a_merged_cell_is_said_in_each_row_and_column_that_it_covers(rows, said):
    table = "".join(f"<w:tr>{''.join(row)}</w:tr>" for row in rows)
    assert text(papers.docx(f"<w:tbl>{table}</w:tbl>")).split("\n") == said


def level(at, form, shown, more="", start=1):
    marks = f'<w:start w:val="{start}"/><w:numFmt w:val="{form}"/><w:lvlText w:val="{shown}"/>'
    return f'<w:lvl w:ilvl="{at}">{marks}{more}</w:lvl>'


ONE_LIST = '<w:num w:numId="1"><w:abstractNumId w:val="7"/></w:num>'


def numbered(levels, paragraphs, nums=ONE_LIST, styles=""):
    """The lines of a docx whose paragraphs are (num, level) each, or a style."""
    marks = [
        f'<w:pStyle w:val="{p}"/>'
        if isinstance(p, str)
        else f'<w:numPr><w:ilvl w:val="{p[1]}"/><w:numId w:val="{p[0]}"/></w:numPr>'
        for p in paragraphs
    ]
    body = "".join(f"<w:p><w:pPr>{mark}</w:pPr>{papers.run('x')}</w:p>" for mark in marks)
    lists = f'<w:abstractNum w:abstractNumId="7">{levels}</w:abstractNum>{nums}'
    more = [("word/numbering.xml", f"<w:numbering {papers.W}>{lists}</w:numbering>")]
    return text(papers.docx(body, styles, more=more)).split("\n\n")


def test_paragraphs_have_the_numbers_that_word_shows():
    three = level(0, "decimal", "%1.") + level(1, "lowerLetter", "(%2)") + level(2, "lowerRoman", "%1.%2.%3)")
    walk = [(1, 0), (1, 1), (1, 1), (1, 2), (1, 2), (1, 0), (1, 1), (1, 2), (0, 0), (9, 0)]
    shown = ["1. x", "(a) x", "(b) x", "1.b.i) x", "1.b.ii) x", "2. x", "(a) x", "2.a.i) x", "x", "x"]
    assert numbered(three, walk) == shown
    legal = level(0, "upperRoman", "Article %1", start=4) + level(1, "decimalZero", "%1.%2", "<w:isLgl/>")
    assert numbered(legal, [(1, 0), (1, 1), (1, 0)]) == ["Article IV x", "4.1 x", "Article V x"]
    assert numbered(level(0, "bullet", "o"), [(1, 0)]) == ["x"]
    assert numbered(level(0, "ordinal", "%1"), [(1, 0)] * 3) == ["1st x", "2nd x", "3rd x"]
    assert numbered(level(0, "upperLetter", "%1", start=26), [(1, 0)] * 2) == ["Z x", "AA x"]


def test_numbers_of_other_scripts_are_shown_as_word_shows_them():
    clauses = level(0, "chineseCountingThousand", "第%1条", start=9) + level(1, "chineseCounting", "%2、")
    walk = [(1, 0), (1, 0), (1, 1), (1, 1), (1, 0)]
    assert numbered(clauses, walk) == ["第九条 x", "第十条 x", "一、 x", "二、 x", "第十一条 x"]
    hundreds = level(0, "japaneseCounting", "%1、", "", 20)
    hundreds += level(1, "chineseLegalSimplified", "%2", "", 101)
    assert numbered(hundreds, [(1, 0), (1, 1)]) == ["二十、 x", "壹佰零壹 x"]
    forms = ("ideographDigital", "decimalEnclosedCircle", "ideographTraditional", "russianLower", "hebrew1")
    assert [numbered(level(0, form, "%1", start=10), [(1, 0)])[0] for form in forms] == [
        "一〇 x",
        "⑩ x",
        "癸 x",
        "к x",
        "10 x",
    ]


def test_lists_go_on_begin_anew_and_come_with_styles():
    nums = (
        '<w:num w:numId="1"><w:abstractNumId w:val="7"/></w:num>'
        '<w:num w:numId="2"><w:abstractNumId w:val="7"/></w:num>'
        '<w:num w:numId="3"><w:abstractNumId w:val="7"/>'
        '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="5"/></w:lvlOverride></w:num>'
    )
    assert numbered(level(0, "decimal", "%1"), [(1, 0), (2, 0), (3, 0), (3, 0)], nums) == [
        "1 x",
        "2 x",
        "5 x",
        "6 x",
    ]
    styles = (
        '<w:style w:styleId="C"><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr></w:style>'
        '<w:style w:styleId="D"><w:basedOn w:val="C"/></w:style>'
    )
    levels = level(0, "decimal", "%1", '<w:pStyle w:val="C"/>') + level(
        1, "decimal", "%1.%2", '<w:pStyle w:val="D"/>'
    )
    assert numbered(levels, "CDDC", styles=styles) == ["1 x", "1.1 x", "1.2 x", "2 x"]


MHT = b"""MIME-Version: 1.0
Content-Type: multipart/related; boundary="B"

--B
Content-Type: text/html; charset=gb2312
Content-Transfer-Encoding: quoted-printable

<html><body><p>=CB=AE=B1=C3</p></body></html>
--B--
"""
CHUNKS = {
    "page.html": (b"<html><p>Oiled by Marta.</p>", "Oiled by Marta."),
    "page.mht": (MHT, "\u6c34\u6cf5"),
    "note.txt": ("Ge\u00f6lt.".encode("cp1252"), "Ge\u00f6lt."),
    "inner.docx": (papers.docx(papers.par(papers.run("An inner one."))), "An inner one."),
}


def with_chunk(name, content):
    body = papers.par(papers.run("Report.")) + f'<w:altChunk {R} r:id="aFChunk"/>'
    more = [("word/_rels/document.xml.rels", relations(aFChunk=name))]
    return papers.docx(body, more=[*more, *([(f"word/{name}", content)] if content else [])])


@pytest.mark.parametrize("name", CHUNKS)
def test_an_embedded_page_is_part_of_the_text(name):
    content, shown = CHUNKS[name]
    assert text(with_chunk(name, content)) == f"Report.\n\n{shown}"


@pytest.mark.parametrize(("content", "reason"), [(b"{\\rtf1 x}", "unsupported"), (None, "broken")])
def test_a_docx_whose_embedded_page_cannot_be_read_is_a_fault(content, reason):
    assert text(with_chunk("page.rtf", content))[0] == reason


def test_a_document_within_another_is_held_to_the_same_limits():
    many = papers.docx(papers.par(papers.run("x")), more=[(f"word/{n}.xml", b"<a/>") for n in range(30)])
    outer = with_chunk("inner.docx", many)
    assert docx.read(outer)["sections"]
    with pytest.raises(UnusableLine, match="at most 20 parts"):
        docx.read(outer, replace(DOCUMENT_LIMITS, zip_members=20))
