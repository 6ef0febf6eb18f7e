"""The folder reader: what each kind of file says, and what becomes of broken and hostile ones."""

import io
import json
import os
import re
import zipfile

import mammoth
import papers
import pytest
from papers import READABLE

from raypipe.readers.documents import DOCUMENT_LIMITS, DocumentReader, fresh_bytes, walk
from raypipe.readers.documents.page_layout import in_order, zigzags
from raypipe.readers.documents.page_tables import Box
from raypipe.readers.documents.page_text import dehyphenated, joined
from raypipe.readers.documents.text_files import decoded, markdown
from raypipe.readers.documents.text_files import table as csv_text
from raypipe.readers.documents.walk import file_kind
from raypipe.readers.rows import UnusableLine
from raypipe.text.blocks import plain_blocks
from raypipe.text.candidates import SourceText, candidates
from raypipe.text.page_parser import fold, to_text


@pytest.fixture(scope="module")
def reader():
    made = DocumentReader()
    yield made
    made.close()


def folded(text):
    return " ".join(text.split())


def share(source, found):
    """Share of the 5-word sequences of a source that stand in what was found."""

    def grams(text):
        words = re.findall(r"\w+", text)
        return [tuple(words[i : i + 5]) for i in range(len(words) - 4)]

    there, wanted = set(grams(found)), grams(source)
    return sum(g in there for g in wanted) / len(wanted)


def refused(call, *arguments):
    with pytest.raises(UnusableLine) as e:
        call(*arguments)
    return e.value.fault.reason


@pytest.mark.parametrize("made", READABLE.values(), ids=READABLE)
def test_a_pdf_keeps_its_words_and_their_order(reader, made):
    data, text = made()
    found = reader.read("x.pdf", data)
    assert share(text, found.content) >= 0.95
    markers = re.findall(r"Marker\d+x\d+", text)
    assert re.findall(r"Marker\d+x\d+", found.content) == markers
    assert not found.faults and "\ufffe" not in found.content


@pytest.mark.parametrize("columns", [1, 2])
def test_a_marker_stands_in_the_span_of_its_page_and_headers_are_dropped(reader, columns):
    data, _, markers = papers.reportlab_columns(columns, 20 + columns, 24)
    found = reader.read("x.pdf", data)
    text = folded(found.content)
    assert len(found.pages) > 2 and "Journal of Invented Rivers" not in text
    for word, page in markers:
        at = re.search(rf"\b{word}\b", text).start()
        assert found.pages[page - 1].start <= at < found.pages[page - 1].end
    assert found.pages[-1].end == len(text)
    assert found.title == "Sediment in invented rivers"


def lettered(top, bottom):
    """The text of four pages of six lines, read as one document."""
    prose = ["The goods were sent", "by post to you", "and paid by bank", "as the law demands"]
    pages = ([top(n), *(f"{line} {'abcd'[n - 1]}" for line in prose), bottom(n)] for n in range(1, 5))
    return folded(joined(["\n".join(filter(None, page)) for page in pages], "1234").content)


@pytest.mark.parametrize(
    "line",
    [
        "Invoice no. 104{}",
        "{}.50",
        "104{}.10 EUR in all",
        "Letter {}",
        "Born {}0.3.1987",
        "Certificate of conformity 88{}",
        "Purchase order with the number 45{}",
        "Ten of them at {} EUR each",
    ],
)
def test_a_line_with_another_number_on_each_page_is_no_header(line):
    text = lettered(line.format, lambda n: "Paid by bank transfer")
    assert all(line.format(n) in text for n in range(1, 5)) and text.count("bank transfer") == 1
    assert all(line.format(n) in lettered(lambda n: "ACME Ltd", line.format) for n in range(1, 5))


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "- {} -",
        "10{}",
        "Page {} of 4",
        "Seite {}/4",
        "River board of Bonn, {}",
        "21{} Ada Example et al.",
        "| Journal of Invented Rivers | 14{} |",
        "Handbook - page 3{}",
        "Annual report, page 3{} of 90",
    ],
)
def test_the_number_of_the_page_goes(line):
    assert lettered(lambda n: "", line.format) == lettered(lambda n: "", lambda n: "")


def test_a_form_of_xfa_is_no_document(reader):
    placeholder = "If this message is not eventually replaced by the proper contents of the document, wait."
    form = "/AcroForm << /Fields [] /XFA 6 0 R >> /NeedsRendering true"
    assert refused(reader.read, "a.pdf", papers.written_pdf(placeholder)) == "unsupported"
    assert refused(reader.read, "a.pdf", papers.written_pdf("Bitte warten", form)) == "unsupported"
    assert reader.read("a.pdf", papers.written_pdf("Please wait in the hall.")).content


def test_pages_have_their_printed_labels_sections_those_of_the_outline_and_footnotes_stay(reader):
    data, _, notes = papers.typst_pages(1, 31)
    found = reader.read("x.pdf", data)
    text = folded(found.content)
    assert [p.label for p in found.pages] == ["i", "ii", "iii"]
    assert [s.label for s in found.sections][:2] == ["Chapter 0 of the report", "Chapter 1 of the report"]
    for section in found.sections:
        assert text.startswith(section.label, section.start)
    assert all(note in text for note in notes)


def test_the_order_of_columns_is_repaired_and_tables_are_left_alone(reader):
    assert reader.read("x.pdf", papers.reportlab_rows(5)[0]).repaired == 1
    assert reader.read("x.pdf", papers.reportlab_table(6)[0]).repaired == 0
    table = [
        Box(60 + 250 * (i % 2), 700 - 20 * (i // 2), 120 + 250 * (i % 2), 710 - 20 * (i // 2))
        for i in range(24)
    ]
    assert not zigzags(table)
    rows = [
        Box(60 + 250 * (i % 2), 700 - 20 * (i // 2), 290 + 250 * (i % 2), 710 - 20 * (i // 2))
        for i in range(24)
    ]
    assert zigzags(rows)
    assert [line[0] for line in in_order(rows)] == [*range(0, 24, 2), *range(1, 24, 2)]


def test_text_in_a_script_without_spaces_is_read_from_a_font_that_the_file_lacks(reader):
    data, text = papers.reportlab_cjk()
    assert reader.read("x.pdf", data).content.count(text) == 5


def test_a_file_without_text_is_refused_with_its_reason(reader):
    from reportlab.lib.pdfencrypt import StandardEncryption

    whole = papers.reportlab_columns(1, 4)[0]
    locked = papers.reportlab_columns(1, 4, encrypt=StandardEncryption("secret"))[0]
    assert refused(reader.read, "x.pdf", papers.reportlab_scan(False)[0]) == "no_text"
    assert refused(reader.read, "x.pdf", locked) == "encrypted"
    assert refused(reader.read, "x.pdf", whole[: len(whole) // 2]) == "broken"
    assert refused(reader.read, "x.pdf", papers.raw_pages([papers.stream(b"")])) == "blank"
    assert refused(reader.read, "x.pdf", b"%PDF-1.7 and nothing else") == "broken"


def test_a_bad_page_costs_that_page(reader):
    good = papers.said_page("A page that can be read\nand that says something")
    image = papers.reportlab_scan(False)[0]
    assert image
    found = reader.read("x.pdf", papers.two_pages_and_a_bad_one(good))
    assert [(n, f.reason) for n, f in found.faults] == [(2, "bad_page")]
    assert len(found.pages) == 3 and found.pages[1].start == found.pages[1].end
    assert found.content.count("A page that can be read") == 2


@pytest.mark.drill
def test_three_bombs_end_the_child_and_not_the_reader(reader):
    assert refused(reader.read, "x.pdf", papers.laughs()) in ("timeout", "memory")
    assert refused(reader.read, "x.pdf", papers.flate_bomb()) in ("memory", "timeout")
    assert refused(reader.read, "x.pdf", papers.million_pages()) == "too_large"
    bomb = papers.docx(papers.par(papers.run("a" * (63 << 20))))
    assert len(bomb) < 400_000 and refused(reader.read, "x.docx", bomb) == "too_large"
    assert reader.read("x.pdf", papers.by_hand(1)[0]).content


def test_a_docx_says_all_that_word_shows_and_nothing_that_it_hides(reader):
    data, shown = papers.every_construct()
    found = reader.read("x.docx", data)
    assert folded(found.content) == shown
    assert found.title == "The annual report"
    assert [s.label for s in found.sections] == [
        "Methods of the survey",
        "Own chapter",
        "By its outline level",
    ]
    for section in found.sections:
        assert shown.startswith(section.label, section.start)
    oracle = mammoth.extract_raw_text(io.BytesIO(data)).value
    known = set(re.findall(r"\w+", found.content))
    # mammoth shows hidden text, text that was moved away and soft hyphens, and no formulas
    assert set(re.findall(r"\w+", oracle)) - {"hiddenA", "soft", "ened", "moved", "away"} <= known


def test_an_office_file_that_cannot_be_read_says_why(reader):
    data = papers.every_construct()[0]
    ole = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)
    assert refused(file_kind, "x.docx", data[: len(data) // 2]) == "broken"
    assert refused(file_kind, "x.docx", ole + "EncryptedPackage".encode("utf-16-le")) == "encrypted"
    assert refused(file_kind, "x.doc", ole) == "unsupported"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("ppt/presentation.xml", "<p/>")
    assert refused(file_kind, "x.docx", out.getvalue()) == "unsupported"
    entity = '<!DOCTYPE d [<!ENTITY a "aaaa">]>'
    assert "aaaa" not in str(
        reader.read("x.docx", papers.docx(papers.par(papers.run("fine")), more=[("word/x.xml", entity)]))
    )


def test_a_kind_is_told_by_content_and_a_name_only_tells_texts_apart():
    page = b"<!DOCTYPE html><title>Log in</title>"
    assert refused(file_kind, "paper.pdf", page) == "kind_mismatch"
    assert refused(file_kind, "x.txt", b"GIF89a" + bytes(9)) == "unsupported"
    assert refused(file_kind, "x.txt", b"ab\0cd") == "unsupported"
    assert refused(file_kind, "x.txt", b" \n ") == "empty"
    assert file_kind("x", b"junk before\n%PDF-1.4 ...") == "pdf"
    assert file_kind("x.txt", page) == "html"
    assert [file_kind(f"x.{s}", b"a, b") for s in ("md", "csv", "txt", "log")] == ["md", "csv", "txt", "txt"]


def test_encodings_are_read_by_mark_by_declaration_and_by_guess():
    text = "café à la crème, naïveté"
    for name in ("utf-8", "utf-8-sig", "utf-16", "cp1252"):
        assert decoded(text.encode(name)) == text
    russian = "Река измеряется каждый день осенью и зимой. " * 20
    assert decoded(russian.encode("cp1251")) == russian
    page = f'<meta charset="windows-1251"><p>{russian}</p>'
    assert decoded(page.encode("cp1251"), True) == page


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("utf-16", "utf-8", "é €"),  # a page that could be read so far is no UTF-16
        ("unicode", "utf-8", "é €"),
        ("gb2312", "gbk", "朱镕之"),
        ("GB_2312-80", "gbk", "镕"),
        ("iso-8859-1", "cp1252", "museum\u2019s 12 €"),
        ("us-ascii", "cp1252", "“so”"),
        ("iso-8859-9", "cp1254", "Şişli \u2013 ğ"),
        ("tis-620", "cp874", "การรับประกัน “ก”"),
        ("ks_c_5601-1987", "cp949", "펲시 똠방"),
        ("x-sjis", "cp932", "ポンプ①"),
        ("big5", "big5hkscs", "碁銹裏"),
        ("undefined", "utf-8", "café"),  # a codec of Python, and no label
        ("idna", "utf-8", "café"),
        ("rot13", "utf-8", "café"),
        ("no such thing", "utf-8", "café"),
        ("utf-8", "cp1252", "Größe über Maß"),  # a label that lies
        ("x-user-defined", "cp1252", "café"),
    ],
)
def test_a_label_means_what_browsers_take_it_for_and_never_ends_a_read(label, codec, text):
    for head in (
        f'<meta charset="{label}">',
        f"<meta http-equiv=Content-Type content='text/html; charset={label}'>",
    ):
        page = f"<html><head>{'<!-- -->' * 200}{head}</head><p>{text}"
        assert decoded(page.encode(codec), True) == page
    if label not in ("utf-16", "unicode", "x-user-defined"):
        assert decoded(text.encode(codec), named=label) == text


def test_one_damaged_character_does_not_change_the_encoding_of_a_text():
    text = "水泵的保修期为三十个月。软管的保修期为十二个月。"
    assert decoded(text.encode()[:-1]) == text[:-1] + "\ufffd"
    assert decoded(f"<meta charset=gbk>{text}".encode("gbk")[:-1], True).endswith(text[:-1] + "\ufffd")
    assert decoded("<?xml version='1.0' encoding='Shift_JIS'?><html>ポンプ".encode("cp932"), True).endswith(
        "ポンプ"
    )
    with pytest.raises(UnusableLine, match="encoding that browsers do not read"):
        decoded(b"x", named="iso-2022-kr")


def test_rows_of_a_csv_name_their_columns_short_ones_have_empty_cells_and_longer_ones_are_faults():
    text, faults = csv_text('city;people\nParis;"2,1 M"\nLyon;522\n')
    assert (text, faults) == ("| city: Paris | people: 2,1 M |\n| city: Lyon | people: 522 |", [])
    assert csv_text("1,2\n3,4\n")[0] == "| 1 | 2 |\n| 3 | 4 |"
    text, [(line, fault)] = csv_text("a,b,c\n1,2\n1,2,3,4\n1,2,3,,\n1\n")
    assert text == "| a: 1 | b: 2 |\n| a: 1 | b: 2 | c: 3 |\n| a: 1 |"
    assert (
        (line, fault.reason) == (3, "ragged_rows")
        and "at most 3 cells" in fault.detail
        and "found 4" in fault.detail
    )
    assert refused(csv_text, 'a,b\n1,"2\n') == "broken"


@pytest.mark.parametrize("kind", ["pdf", "docx", "csv", "html", "md"])
def test_the_rows_of_a_table_are_facts_in_every_kind_of_file(reader, kind):
    file = reader.read(
        f"foo.{kind}", papers.spec_sheet(kind, [("Weight", "17.2 kg"), ("Warranty", "24 months")])
    )
    page = to_text(file.content) if kind == "html" else None
    text = page.text if page else fold(file.content)
    blocks = page.blocks if page else plain_blocks(file.content, titled=True)
    found = candidates([("s", (0, len(text)))], {"s": SourceText(text, blocks)})
    said = [s.text.removeprefix("Foo pump, ") for s in found if s.value]
    assert [s for s in said if s.startswith("W")] == ["Weight: 17.2 kg", "Warranty: 24 months"]
    assert not any("Weight" in s.text and "Warranty" in s.text for s in found)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("land,2019,2020\nNorway,5.1,6.3\n", "| land: Norway | 2019: 5.1 | 2020: 6.3 |"),
        (",2019,2020\nNorway,5.1,6.3\n", "| Norway | 2019: 5.1 | 2020: 6.3 |"),
        ("land;2020\nNorway;6.3\nChad;2000\n", "| land: Norway | 2020: 6.3 |\n| land: Chad | 2020: 2000 |"),
        ("item,1,2,3\nhose,5.5,6,8\n", "| item: hose | 1: 5.5 | 2: 6 | 3: 8 |"),
        ("Anna,1984,Bonn\nBo,1990,Paris\n", "| Anna | 1984 | Bonn |\n| Bo | 1990 | Paris |"),
        ("a,1,2,3\nb,4,5,6\n", "| a | 1 | 2 | 3 |\n| b | 4 | 5 | 6 |"),
        ("2019,2020\n5.1,6.3\n", "| 2019 | 2020 |\n| 5.1 | 6.3 |"),
        ("Of 2021\n\nPart;2021;2022\nx;6,3;7\n", "| Of 2021 |\n| Part: x | 2021: 6,3 | 2022: 7 |"),
        ("Sales,,\nPart,days,\nIM-60,21,\n", "| Sales |\n| Part: IM-60 | days: 21 |"),
        ("one\ntwo\n", "| one: two |"),
        ("sep=;\r\na,b;c\r\n1;2\r\n", "| a,b: 1 | c: 2 |"),
        ('"SEP=|"\na|b\n1|2\n', "| a: 1 | b: 2 |"),
        ("sep=\t\na,b\tc\n1\t2\n", "| a,b: 1 | c: 2 |"),
        (
            "land,2019,2020\nMali,5.1,6\nland,2021,2022\nMali,7,8.2\nland,2019,2020\nChad,1,2\n",
            "| land: Mali | 2019: 5.1 | 2020: 6 |\n| land: Mali | 2021: 7 | 2022: 8.2 |\n"
            "| land: Chad | 2019: 1 | 2020: 2 |",
        ),
        (
            ",2019,2020\nMali,5.1,6\n,2021,2022\nMali,7,8.2\n",
            "| Mali | 2019: 5.1 | 2020: 6 |\n| Mali | 2021: 7 | 2022: 8.2 |",
        ),
        (
            "in,Q1,Q2\nMali,5.1,6\nin,Q3,Q4\nMali,7,8.2\n",
            "| in: Mali | Q1: 5.1 | Q2: 6 |\n| in: Mali | Q3: 7 | Q4: 8.2 |",
        ),
        ("name,type\nid,int\nname,text\n", "| name: id | type: int |\n| name: name | type: text |"),
        ("name,type\nid,int\nname,type\nx,y\n", "| name: id | type: int |\n| name: x | type: y |"),
        (f"a,b\n1,{'x' * 140_000}\n", f"| a: 1 | b: {'x' * 140_000} |"),
    ],
)
def test_years_name_columns_excels_first_line_the_separator_and_cells_may_be_long(rows, said):
    assert csv_text(rows) == (said, [])


def test_markdown_has_sections_by_its_headings_but_not_in_code():
    title, sections = markdown(
        "intro\n\n# The *title*\n\ntext\n\n```\n# no heading\n```\n\nSecond\n------\nmore\n"
    )
    assert title == "The title"
    assert [heading for heading, _ in sections] == ["", "The title", "Second"]


def test_hyphens_at_line_ends_are_decided_by_the_words_of_the_document():
    known = "affect well-known state machine"
    assert dehyphenated(
        [f"{known} af\ufffefect well\ufffeknown state\ufffemachine un\ufffeseen soft\u00adened"]
    ) == [f"{known} affect well-known state-machine unseen softened"]
    over = joined(["first page with an unfin\ufffe", "ished word here"], ["1", "2"])
    assert folded(over.content) == "first page with an unfinished word here"
    assert folded(over.content)[over.pages[1].start :] == "unfinished word here"


def test_a_folder_is_walked_without_waiting_leaving_or_turning_in_circles(tmp_path):
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("text")
    (folder / "sub" / "b.md").write_text("text")
    (folder / ".hidden").write_text("text")
    os.link(folder / "a.txt", folder / "same.txt")
    os.mkfifo(folder / "pipe")
    (folder / "sub" / "loop").symlink_to(folder)
    (folder / "self").symlink_to(folder / "self")
    (tmp_path / "secret").write_text("no")
    (folder / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.txt").write_text("no")
    (folder / "away").symlink_to(tmp_path / "elsewhere")
    (folder / "inside").symlink_to(folder / "sub" / "b.md")
    for name, record in (("run", {"format": 1, "run": "r"}), ("mine", {"distance_km": 5})):
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(json.dumps(record, indent=1))
        (folder / name / "report.html").write_text("<p>text</p>")
    with open(folder / "big.pdf", "wb") as file:
        file.truncate(2 << 30)
    found = {f.name: f.trouble and f.trouble.fault.reason for f in walk(folder, [], DOCUMENT_LIMITS)}
    assert found == {
        "a.txt": None,
        "away": "outside",
        "big.pdf": "too_large",
        "inside": None,
        "mine/report.html": None,
        "mine/run.json": None,
        "out": "outside",
        "pipe": "not_a_file",
        "run": "run",
        "self": "loop",
        "sub/loop": "loop",
    }
    assert [f.name for f in walk(folder, ["*.md", "!sub/*"], DOCUMENT_LIMITS)] == []
    assert [f.name for f in walk(folder, ["sub/*.md"], DOCUMENT_LIMITS)] == ["sub/b.md"]


def test_a_file_that_changes_between_stat_and_open_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    [found] = walk(tmp_path, [], DOCUMENT_LIMITS)
    (tmp_path / "a.txt").write_text("longer text")
    assert refused(fresh_bytes, found) == "changed"


def test_front_matter_gives_fields_and_neither_a_title_nor_a_section(reader):
    said = "# of a wiki\nTeam Name: HR\nDate: 2 March 2025\ntags: [a, b]\nn: 0x10\ncustomer: [acme]\n"
    text = f"---\n{said}---\n# Leave\n\nThe leave.\n"
    found = reader.read("leave.md", text.encode())
    assert found.fields == {"customer": "acme", "date": "2025-03-02", "n": "16", "team_name": "HR"}
    assert found.skipped == ("tags",), "a list of several values is no field"
    assert (found.title, [m.label for m in found.sections]) == ("Leave", ["Leave"])
    assert found.content == "# Leave\n\nThe leave.\n", "what is a field is no text to quote"
    assert found.content[found.sections[0].start :].startswith("# Leave")


def test_faulty_front_matter_is_a_fault_and_a_rule_above_a_text_is_none(reader):
    text = "---\ntitle: Secret\ncustomer: acme: plant\n---\nThe margin is 41 %.\n"
    said = r"line 3: .*'customer: acme: plant': mapping values are not allowed.* quotes.*\*\*\*"
    with pytest.raises(UnusableLine, match=f"front_matter: {said}"):
        reader.read("secret.md", text.encode())
    faulty = ("a: [\n---\nx", "a:b\n---\nx", "- a: 1\n---\nx", "a: 1\nx", f"a: {'x' * 30_000}\n---\nx")
    for broken in (*faulty, f"n: {'9' * 5_000}\n---\nx", f"a: {'[' * 9_000}\n---\nx", "'a: b\n...\nx"):
        assert refused(reader.read, "x.md", f"---\n{broken}".encode()) == "front_matter", broken
    texts = (
        "Some prose.\n---\nx",
        "- a\n---\nx",
        "\nOn\n\nx: 1",
        "At 10:30 by http://x/\n---\n",
        "---\nx",
        "",
    )
    for rule in (*texts, ""):
        found = reader.read("x.txt", f"---\n{rule}".encode())
        assert (found.fields, found.content[:3]) == ({}, "---"), rule
    several = b"---\nkind: Job\n---\nkind: {{ a }}\n---\n"
    assert reader.read("jobs.yaml", several).content == several.decode(), "a YAML file is all text"
