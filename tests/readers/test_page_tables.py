"""Tables of PDFs by several producers: each cell in its column, spanning headers told, prose left alone."""

import io

import papers
import pytest

from raypipe.readers.documents import pdf
from raypipe.readers.documents.page_layout import laid_out
from raypipe.readers.documents.page_tables import Box, Row, headed
from raypipe.readers.documents.page_text import joined
from raypipe.text.blocks import plain_blocks
from raypipe.text.candidates import SourceText, candidates
from raypipe.text.page_parser import fold, to_text


def text_of(data):
    """The text of a PDF, as the reader joins its pages."""
    document = pdf.opened(data)
    try:
        pages = [document.page(n) for n in range(document.about()["pages"])]
    finally:
        document.close()
    return joined([p["text"] for p in pages], [str(n) for n in range(1, len(pages) + 1)]).content


def facts(text, blocks):
    found = candidates([("s", (0, len(text)))], {"s": SourceText(text, blocks)})
    return [s.text for s in found if s.value]


def reportlab_table(rows, *styles, before="The pumps are made in Bonn.", after="Prices are without tax."):
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Table

    out, style = io.BytesIO(), getSampleStyleSheet()["BodyText"]
    table = Table(rows, style=[*styles])
    SimpleDocTemplate(out).build([Paragraph(before, style), table, Paragraph(after, style)])
    return out.getvalue()


GRID = ("GRID", (0, 0), (-1, -1), 0.5, "black")
PUMPS = [
    ["Model", "Delivery (days)", "Weight (kg)", "Price (EUR)"],
    ["IM-60", "21", "17.2", "1,250.00"],
    ["IM-90", "35", "24.8", "12,400.50"],
    ["IM-120", "", "31", "15,000"],
]
SALES = [
    ["Region", "Sales", "", "Staff", ""],
    ["", "2023", "2024", "2023", "2024"],
    ["North", "1,204", "1,377", "12", "14"],
    ["South", "988", "1,020", "9", "10"],
]
SPANS = [("SPAN", (1, 0), (2, 0)), ("SPAN", (3, 0), (4, 0)), ("SPAN", (0, 0), (0, 1))]
SAID = [
    "| Region | Sales 2023 | Sales 2024 | Staff 2023 | Staff 2024 |",
    "| North | 1,204 | 1,377 | 12 | 14 |",
    "| South | 988 | 1,020 | 9 | 10 |",
]


def lines(rows):
    return [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]


def test_ruled_cells_stand_in_their_columns_and_an_empty_one_keeps_its_place():
    text = text_of(reportlab_table(PUMPS, GRID))
    assert text.split("\n") == ["The pumps are made in Bonn.", *lines(PUMPS), "Prices are without tax."]


def test_the_facts_of_a_ruled_table_are_those_of_the_same_table_in_html():
    text = text_of(reportlab_table(PUMPS, GRID))
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in PUMPS[:3])
    page = to_text(f"<html><body><table>{rows}</table></body></html>")
    html = facts(page.text, page.blocks)
    found = facts(fold(text), plain_blocks(text, titled=True))
    assert html and [f for f in found if "IM-120" not in f] == html
    assert "IM-90, Price (EUR): 12,400.50" in found and "IM-120, Weight (kg): 31" in found
    assert not any(f.startswith("IM-120, Delivery") for f in found)


def test_a_header_over_several_columns_is_part_of_the_name_of_each():
    text = text_of(reportlab_table(SALES, GRID, *SPANS, ("ALIGN", (1, 0), (-1, -1), "CENTER")))
    assert [line for line in text.split("\n") if line[0] == "|"] == SAID
    assert "North, Staff 2024: 14" in facts(fold(text), plain_blocks(text))


def test_a_row_of_a_group_has_a_name_and_a_line_above_a_table_is_the_tables():
    rows = [["Series", "Model", "Price"], ["Compact", "BC-10", "119 EUR"], ["", "BC-12", "139 EUR"]]
    text = text_of(reportlab_table(rows, GRID, before="Prices of drills"))
    blocks = plain_blocks(text)
    found = candidates([("s", (0, len(fold(text))))], {"s": SourceText(fold(text), blocks)})
    assert [s.text for s in found if s.value][-2:] == ["Model: BC-12", "BC-12, Price: 139 EUR"]
    price = found[[s.text for s in found].index("BC-12, Price: 139 EUR")]
    assert price.around.startswith("Prices of drills Compact Series"), "its group is the row's above"
    assert "Prices of drills" not in [s.text for s in found]
    coded = [["Code", "Species", "Height"], ["P02", "Wych elm", "2.4"], ["P03", "Field maple", "3.1"]]
    text = text_of(reportlab_table(coded, GRID))
    assert "P02, Wych elm, Height: 2.4" in facts(fold(text), plain_blocks(text))


def typst_table(options, cells):
    import typst

    body = ", ".join(cells)
    return typst.compile(f"= Yields\n#table(columns: 5, {options}, {body})\nAll of one year.".encode())


@pytest.mark.parametrize("stroke", ["none", ".5pt", "(x: none, y: .5pt)"])
def test_rules_or_none_the_columns_are_those_of_the_cells(stroke):
    spans = [f"table.cell(colspan: 2)[{name}]" for name in ("Sales", "Staff")]
    above = ["table.cell(rowspan: 2)[Region]", *spans]
    below = [f"[{cell}]" for row in SALES[1:] for cell in row if cell]
    text = text_of(typst_table(f"stroke: {stroke}, align: left + horizon", [*above, *below]))
    assert [line for line in text.split("\n") if line[0] == "|"] == SAID


def test_a_cell_of_several_lines_is_one_and_thousands_keep_their_separators():
    from fpdf import FPDF

    rows = [
        ("Station", "Level", "Flow", "Note"),
        ("Alder", "120", "1,250", "ice at noon, then open all day"),
        ("Birch", "98", "", "-"),
        ("Cedar", "143", "1 002 001", "new gauge"),
    ]
    made = FPDF()
    made.add_page()
    made.set_font("Helvetica", size=11)
    made.multi_cell(0, 6, "The stations are read each morning by the keepers of the lock.")
    with made.table(borders_layout="NONE", col_widths=(40, 30, 40, 45)) as table:
        for row in rows:
            table.row(row)
    found = [line for line in text_of(bytes(made.output())).split("\n") if line[0] == "|"]
    assert found == lines(rows)


def drawn(columns, leading=14, width=250, first=780):
    """A page of lines, column by column."""
    from reportlab.pdfgen.canvas import Canvas

    out = io.BytesIO()
    canvas = Canvas(out)
    canvas.setFont("Times-Roman", 10)
    for c, column in enumerate(columns):
        for n, line in enumerate(column):
            canvas.drawString(60 + width * c, first - leading * n, line)
    canvas.save()
    return out.getvalue()


def test_prose_in_columns_is_no_table_however_the_file_orders_it():
    words = papers.paragraphs(3, 1, 400)[0].split()
    left, right = ([" ".join(words[at + 7 * n :][:7]) for n in range(6)] for at in (0, 100))
    for data in (
        drawn([left, right]),
        drawn([left[:3], right[:3]]),
        papers.reportlab_columns(2, 9, 24)[0],
        papers.reportlab_rows(5)[0],
        papers.fpdf_columns(2, 8)[0],
        papers.typst_pages(2, 7)[0],
    ):
        assert "|" not in text_of(data)


def test_prose_in_a_frame_and_items_of_a_list_are_no_table():
    long = " ".join(papers.paragraphs(4, 3, 70))
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import ListFlowable, Paragraph, SimpleDocTemplate, Table

    style, out = getSampleStyleSheet()["BodyText"], io.BytesIO()
    frame = Table([[Paragraph(long, style)] * 2, [Paragraph(long, style)] * 2], style=[GRID])
    items = ListFlowable([Paragraph(text, style) for text in papers.paragraphs(5, 4, 30)], bulletType="1")
    SimpleDocTemplate(out).build([frame, items])
    assert "|" not in text_of(out.getvalue())


def test_lines_of_a_program_and_a_table_of_contents_are_no_table():
    program = drawn([["$ date -u", "$ ls -l foo", "if [ -f x ]; then"]])
    contents = drawn([["1 Welcome . . . . . . .", "2 Media . . . . . . ."], ["1", "17"]], width=300)
    assert "|" not in text_of(program) + text_of(contents)


def boxes(*rows):
    """A box for each cell that says something, 100 points apart."""
    made = [
        (cell, Box(100.0 * c, 700.0 - 15 * r, 100.0 * c + 6 * len(cell), 710.0 - 15 * r))
        for r, row in enumerate(rows)
        for c, cell in enumerate(row)
        if cell
    ]
    return [cell for cell, _ in made], [box for _, box in made]


def test_no_word_of_a_page_is_lost_where_lines_and_boxes_disagree():
    says, made = boxes(("a", "b", "c"), ("d", "", "f"), ("g", "h", "i"))
    text, repaired = laid_out("a b c\nd f\nand more\ng h i", made, says.__getitem__)
    assert (text, repaired) == ("| a | b | c |\n| d |  | f |\nand more\n| g | h | i |", False)
    assert laid_out("b a c\nf d\nand more", made, says.__getitem__)[0] == "b a c\nf d\nand more"


def test_names_of_columns_are_joined_and_rows_of_numbers_are_not():
    rows = [Row((0,), ("x", "x", "y")), Row((1,), ("2019", "2020", "of 2")), Row((2,), ("1", "2", "3"))]
    assert [row.cells for row in headed(rows)] == [("x 2019", "x 2020", "y of 2"), ("1", "2", "3")]
    assert headed([rows[0], rows[2], rows[1]]) == [rows[0], rows[2], rows[1]]
