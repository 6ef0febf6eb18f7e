"""Files for the folder reader, made in the tests by several producers: PDFs of every kind, and a docx.

Each function gives the bytes of a file and what it says, so that a test can hold a reader to it.
"""

import io
import random
import zipfile
import zlib

WORDS = """
    the of a to and in for with on that river station measured method result average sample water
    temperature pressure engine office efficient affluent flow profile financial classification
    reference workflow difficult afflict fluid report season winter autumn harvest village council
    budget decided member question answer library passage document collection retrieval ranking
    evidence citation author describes observed increase decrease compared baseline error estimate
    interval confidence distribution hydrology sediment velocity gradient catchment monitoring
    network instrument calibration laboratory procedure protocol analysis interpretation uncertainty
    validation
""".split()  # noqa: SIM905 : a list of them takes a line each


def paragraphs(seed, count, words=90):
    """Paragraphs of made-up prose; each begins with a marker word of its own."""
    draw = random.Random(seed)
    made = []
    for n in range(count):
        said, left = [f"Marker{seed}x{n}"], words
        while left > 0:
            size = min(left, draw.randint(8, 16))
            some = [draw.choice(WORDS) for _ in range(size)]
            said += [*some[:-1], some[-1] + "."]
            left -= size
        made.append(" ".join(said))
    return made


def _numbered(canvas, document):
    """A header and a footer with the number of the page."""
    canvas.setFont("Helvetica", 8)
    canvas.drawString(72, 815, f"Journal of Invented Rivers, volume 3, {document.page}")
    canvas.drawString(290, 25, f"- {document.page} -")


def reportlab_columns(columns, seed, count=12, encrypt=None, rotate=0):
    """Flowing text in one or two columns, with headers and footers."""
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.platypus import BaseDocTemplate, Frame, PageTemplate, Paragraph

    out, said = io.BytesIO(), paragraphs(seed, count)
    style = ParagraphStyle(
        "body", fontName="Times-Roman", fontSize=10, leading=12.5, spaceAfter=6, alignment=4
    )
    width = (A4[0] - 144 - 20 * (columns - 1)) / columns
    frames = [Frame(72 + i * (width + 20), 60, width, 730, 0, 0, 0, 0) for i in range(columns)]

    def on_page(canvas, document):
        if rotate:
            canvas.setPageRotation(rotate)
        _numbered(canvas, document)

    document = BaseDocTemplate(out, pagesize=A4, encrypt=encrypt, title="Sediment in invented rivers")
    document.addPageTemplates(PageTemplate(frames=frames, onPage=on_page))
    pages = {}

    class Marked(Paragraph):
        """Says on which page its marker is drawn, also where it is split over two."""

        marker = None

        def split(self, *room):
            parts = super().split(*room)
            for part in parts[:1]:
                part.marker = self.marker
            return parts

        def draw(self):
            pages.setdefault(self.marker, self.canv.getPageNumber())
            super().draw()

    flow = [Marked(text, style) for text in said]
    for text, paragraph in zip(said, flow, strict=True):
        paragraph.marker = text.split()[0]
    document.build(flow)
    pages.pop(None, None)
    return out.getvalue(), " ".join(said), tuple(pages.items())


def reportlab_rows(seed):
    """Two columns that the file has line by line, across the page: nothing else tells them apart."""
    from reportlab.pdfgen.canvas import Canvas

    out, draw = io.BytesIO(), random.Random(seed)
    canvas = Canvas(out)
    columns = [[" ".join(draw.choice(WORDS) for _ in range(7)) for _ in range(40)] for _ in range(2)]
    columns = [[line[:40].ljust(40, "e") for line in column] for column in columns]
    canvas.setFont("Courier", 9)
    for n, (left, right) in enumerate(zip(*columns, strict=True)):
        canvas.drawString(60, 780 - 14 * n, left)
        canvas.drawString(310, 780 - 14 * n, right)
    canvas.save()
    return out.getvalue(), " ".join(" ".join(column) for column in columns)


def reportlab_table(seed):
    """A page of prose, and tables of two and four columns."""
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Spacer, Table

    out, said, style = io.BytesIO(), paragraphs(seed, 2), getSampleStyleSheet()["BodyText"]
    narrow = [[f"station {n}", f"{n * 7} cubic metres"] for n in range(12)]
    wide = [[f"row{n}", f"a{n}", f"b{n}", f"c{n}"] for n in range(10)]
    flow = [
        Paragraph(said[0], style),
        Table(narrow),
        Spacer(1, 9),
        Table(wide, 90),
        Paragraph(said[1], style),
    ]
    SimpleDocTemplate(out).build(flow)
    cells = [cell for row in narrow + wide for cell in row]
    return out.getvalue(), " ".join([said[0], *cells, said[1]])


def spec_sheet(kind, rows, title="Foo pump"):
    """A file of this kind: a title, a table of two columns and a sentence; of a csv a row with their
    values."""
    said = "It moves water from wells."
    if kind == "csv":
        names, values = zip(("Name", title), *rows, strict=True)
        return "\n".join(",".join(line) for line in (names, values)).encode()
    if kind == "md":
        table = "\n".join(f"| {a} | {b} |" for a, b in [("Item", "Value"), ("---", "---"), *rows])
        return f"# {title}\n\n{table}\n\n{said}\n".encode()
    if kind == "html":
        table = "".join(f"<tr><td>{a}</td><td>{b}</td></tr>" for a, b in rows)
        return f"<html><title>{title}</title><table>{table}</table><p>{said}</p>".encode()
    if kind == "docx":
        cells = ("".join(f"<w:tc>{_paragraph(c)}</w:tc>" for c in row) for row in rows)
        table = "".join(f"<w:tr>{row}</w:tr>" for row in cells)
        return docx(f"{_paragraph(title)}<w:tbl>{table}</w:tbl>{_paragraph(said)}")
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Table

    out, styles = io.BytesIO(), getSampleStyleSheet()
    parts = [
        Paragraph(title, styles["Title"]),
        Table([list(r) for r in rows]),
        Paragraph(said, styles["BodyText"]),
    ]
    SimpleDocTemplate(out).build(parts)
    return out.getvalue()


def _paragraph(text):
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def reportlab_scan(layer):
    """Two pages that are images; `layer`: with invisible text over them, as text recognition leaves it."""
    from PIL import Image
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfgen.canvas import Canvas

    out, said = io.BytesIO(), paragraphs(77, 2, 40)
    noise = ImageReader(Image.effect_noise((200, 280), 60))
    canvas = Canvas(out)
    for text in said:
        canvas.drawImage(noise, 0, 0, 595, 842)
        if layer:
            line = canvas.beginText(60, 780)
            line.setTextRenderMode(3)
            words = text.split()
            for at in range(0, len(words), 8):
                line.textLine(" ".join(words[at : at + 8]))
            canvas.drawText(line)
        canvas.showPage()
    canvas.save()
    return out.getvalue(), " ".join(said)


def reportlab_cjk():
    """Chinese in a font that the file does not hold."""
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont
    from reportlab.pdfgen.canvas import Canvas

    pdfmetrics.registerFont(UnicodeCIDFont("STSong-Light"))
    out, text = io.BytesIO(), "河流沉积物的测量方法和结果比较"
    canvas = Canvas(out)
    canvas.setFont("STSong-Light", 12)
    for n in range(5):
        canvas.drawString(72, 700 - 20 * n, f"{n + 1}{text}")
    canvas.save()
    return out.getvalue(), text


def fpdf_columns(columns, seed, owner=None):
    """Text in columns by fpdf2; `owner`: a password that restricts copying and not reading."""
    from fpdf import FPDF

    said = paragraphs(seed, 10)
    pdf = FPDF()
    pdf.set_title("report-final.docx")  # no title: the name of a file
    pdf.add_page()
    pdf.set_font("Times", size=11)
    with pdf.text_columns(ncols=columns, gutter=8, text_align="J") as area:
        for text in said:
            area.write(text)
            area.ln()
            area.ln()
    if owner:
        pdf.set_encryption(owner_password=owner, permissions=0)
    return bytes(pdf.output()), " ".join(said)


def typst_pages(columns, seed, count=10):
    """Hyphenated text with ligatures, headings, footnotes, a header, and roman numbers on its first page."""
    import typst

    said = paragraphs(seed, count)
    notes = [f"Footnote{n} says that the office affirmed it" for n in range(3)]
    body = "\n\n".join(
        f"== Chapter {n} of the report\n\n{text}" + (f"#footnote[{notes[n // 4]}]" if n % 4 == 0 else "")
        for n, text in enumerate(said)
    )
    source = f"""
#set document(title: "Flow in efficient offices")
#set page(columns: {columns}, numbering: "i", header: [Proceedings of the Invented Society])
#set text(hyphenate: true, lang: "en")
#set par(justify: true)
{body.replace("@", "")}
"""
    text = " ".join(f"Chapter {n} of the report {text}" for n, text in enumerate(said))
    return typst.compile(source.encode()), text, notes


def raw_pdf(objects, trailer=b""):
    """A PDF from its objects, by number from 1; `trailer`: more entries of it."""
    out, at = io.BytesIO(), []
    out.write(b"%PDF-1.7\n")
    for n, content in enumerate(objects, 1):
        at.append(out.tell())
        out.write(b"%d 0 obj\n%b\nendobj\n" % (n, content))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.writelines(b"%010d 00000 n \n" % x for x in at)
    out.write(b"trailer\n<</Size %d/Root 1 0 R%b>>\nstartxref\n%d\n%%%%EOF\n" % (len(at) + 1, trailer, start))
    return out.getvalue()


def stream(data, packed=False, more=b""):
    content = zlib.compress(data, 9) if packed else data
    how = b"/Filter/FlateDecode" if packed else b""
    return b"<</Length %d%b%b>>\nstream\n%b\nendstream" % (len(content), how, more, content)


FONT = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"


def written_pdf(text, catalog=""):
    """A PDF of one line, with more entries of its catalog; object 6 is a stream."""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>"
    shown = stream(f"BT /F1 12 Tf 72 780 Td ({text}) Tj ET".encode())
    root = f"<</Type/Catalog/Pages 2 0 R {catalog}>>".encode()
    return raw_pdf([root, b"<</Type/Pages/Kids[3 0 R]/Count 1>>", page, shown, FONT, stream(b"<xdp>")])


def raw_pages(contents, more=()):
    """A PDF with one page for each content stream; further objects follow, from 5 + 2 * pages on."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * i) for i in range(len(contents)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%b]/Count %d>>" % (kids, len(contents)),
        FONT,
    ]
    first_more = 4 + 2 * len(contents)
    named = b" ".join(b"/X%d %d 0 R" % (i, first_more + i) for i in range(len(more)))
    for i, content in enumerate(contents):
        resources = b"<</Font<</F 3 0 R>>/XObject<<%b>> >>" % named
        page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources%b/Contents %d 0 R>>"
        objects += [page % (resources, 5 + 2 * i), content]
    return raw_pdf([*objects, *more])


def said_page(text):
    lines = b"\n".join(b"(%b) Tj T*" % line.encode() for line in text.split("\n"))
    return stream(b"BT /F 11 Tf 60 780 Td 14 TL\n%b\nET" % lines)


def by_hand(seed):
    """Pages written as bytes, one of them packed."""
    said = paragraphs(seed, 3, 40)
    pages = []
    for n, text in enumerate(said):
        words = text.split()
        lines = [" ".join(words[at : at + 9]) for at in range(0, len(words), 9)]
        shown = b"\n".join(b"(%b) Tj T*" % line.encode() for line in lines)
        pages.append(stream(b"BT /F 11 Tf 60 780 Td 14 TL\n%b\nET" % shown, packed=n == 1))
    return raw_pages(pages), " ".join(said)


def two_pages_and_a_bad_one(content):
    """Three pages, the second of which is none."""
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Resources<</Font<</F 3 0 R>> >>/Contents 5 0 R>>"
    return raw_pdf(
        [
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Kids[4 0 R 6 0 R 7 0 R]/Count 3>>",
            FONT,
            page,
            content,
            b"(no page)",
            page,
        ]
    )


def laughs(levels=9):
    """A page whose form calls ten forms, each of which calls ten, and further: a thousand million calls."""

    def form(i):
        inner = b"/Resources<</XObject<</N %d 0 R>> >>" % (6 + i + 1)
        return stream(b"/N Do " * 10, more=b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]" + inner)

    last = stream(
        b"BT /F 9 Tf (ha) Tj ET",
        more=b"/Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</Font<</F 3 0 R>> >>",
    )
    return raw_pages([stream(b"/X0 Do")], [*(form(i) for i in range(levels)), last])


def flate_bomb(megabytes=600):
    """A page of white space that unpacks a thousand times."""
    packer, packed = zlib.compressobj(9), b""
    for _ in range(megabytes):
        packed += packer.compress(b" " * (1 << 20))
    packed += packer.flush()
    content = b"<</Length %d/Filter/FlateDecode>>\nstream\n%b\nendstream" % (len(packed), packed)
    return raw_pages([content])


def million_pages(count=1_000_000):
    """A tree of pages that names one page a million times."""
    kids = b"3 0 R " * 1000
    middle = b"<</Type/Pages/Parent 2 0 R/Count 1000/Kids[%b]>>" % (b"5 0 R " * 1000)
    return raw_pdf(
        [
            b"<</Type/Catalog/Pages 2 0 R>>",
            b"<</Type/Pages/Count %d/Kids[%b]>>" % (count, kids),
            middle,
            FONT,
            b"<</Type/Page/Parent 3 0 R/MediaBox[0 0 9 9]>>",
        ]
    )


W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
MORE = (
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" '
    'xmlns:v="urn:schemas-microsoft-com:vml"'
)
TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" '
    'ContentType="application/xml"/><Override PartName="/word/document.xml" ContentType="application/'
    'vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
)
RELS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship '
    'Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
    'Target="word/document.xml"/></Relationships>'
)


def run(text, properties=""):
    return f"<w:r>{properties}<w:t xml:space='preserve'>{text}</w:t></w:r>"


def par(*inner, style="", level=""):
    marks = (f'<w:pStyle w:val="{style}"/>' if style else "") + (
        f'<w:outlineLvl w:val="{level}"/>' if level else ""
    )
    return f"<w:p>{f'<w:pPr>{marks}</w:pPr>' if marks else ''}{''.join(inner)}</w:p>"


def table(rows):
    cells = lambda row: "".join(f"<w:tc>{c if c.startswith('<w:') else par(run(c))}</w:tc>" for c in row)  # noqa: E731
    return f"<w:tbl><w:tblPr/>{''.join(f'<w:tr>{cells(row)}</w:tr>' for row in rows)}</w:tbl>"


def docx(body, styles="", notes="", more=()):
    """A docx from the XML of its body."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", TYPES)
        archive.writestr("_rels/.rels", RELS)
        archive.writestr("word/document.xml", f"<w:document {W} {MORE}><w:body>{body}</w:body></w:document>")
        if styles:
            archive.writestr("word/styles.xml", f"<w:styles {W}>{styles}</w:styles>")
        if notes:
            archive.writestr("word/footnotes.xml", f"<w:footnotes {W}>{notes}</w:footnotes>")
        for name, content in more:
            archive.writestr(name, content)
    return out.getvalue()


STYLES = (
    '<w:style w:type="paragraph" w:styleId="H1"><w:name w:val="heading 1"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Own"><w:name w:val="My chapter"/>'
    '<w:basedOn w:val="H1"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="T"><w:name w:val="Title"/></w:style>'
)
TEXT_BOX = (
    "<w:r><mc:AlternateContent><mc:Choice Requires='wps'><wps:txbx><w:txbxContent>{0}</w:txbxContent>"
    "</wps:txbx></mc:Choice><mc:Fallback><w:pict><v:textbox><w:txbxContent>{0}</w:txbxContent></v:textbox></w:pict>"
    "</mc:Fallback></mc:AlternateContent></w:r>"
)


def every_construct():
    """A docx with each construct that a reader may lose, and what it shows, in order."""
    inner = table([["inner one", "inner two"]])
    body = "".join(
        [
            par(run("The annual report"), style="T"),
            par(
                run("First "),
                f'<w:ins w:id="1" w:author="a">{run("inserted ")}</w:ins>',
                '<w:del w:id="2" w:author="a"><w:r><w:delText>deleted</w:delText></w:r></w:del>',
                f'<w:moveFrom w:id="3" w:author="a">{run("moved away ")}</w:moveFrom>',
                run("words"),
            ),
            par(run("Methods of the survey"), style="H1"),
            f"<w:sdt><w:sdtPr/><w:sdtContent>{par(run('In a content control'))}</w:sdtContent></w:sdt>",
            par(run("Before the box"), TEXT_BOX.format(par(run("Inside the text box")))),
            table([["cell one", "cell two"], ["cell three", inner + par(run("after inner"))]]),
            par(run("Own chapter"), style="Own"),
            par(
                run("A note"),
                '<w:r><w:footnoteReference w:id="2"/></w:r>',
                run(" and a formula "),
                "<m:oMath><m:r><m:t>a+b</m:t></m:r></m:oMath>",
            ),
            par(
                run("soft"),
                "<w:r><w:softHyphen/></w:r>",
                run("ened and non"),
                "<w:r><w:noBreakHyphen/></w:r>",
                run("stop"),
            ),
            par(
                run("hidden", "<w:rPr><w:vanish/></w:rPr>"),
                run("A link: "),
                f'<w:hyperlink w:anchor="x">{run("see there")}</w:hyperlink>',
                "<w:r><w:instrText>PAGE</w:instrText></w:r>",
                f'<w:fldSimple w:instr="DATE">{run(" today")}</w:fldSimple>',
            ),
            par(run("By its outline level"), level="1"),
            par(run("The end.")),
        ]
    )
    notes = f'<w:footnote w:id="2">{par(run("What the note says"))}</w:footnote>'
    shown = (
        "The annual report First inserted words Methods of the survey In a content control Before the box "
        "Inside the text box | cell one | cell two | | cell three | inner one inner two after inner | Own "
        "chapter "
        "A note and a formula a+b softened and non-stop A link: see there today By its outline level "
        "The end. What the note says"
    )
    return docx(body, STYLES, notes), shown


READABLE = {
    "reportlab, one column": lambda: reportlab_columns(1, 1)[:2],
    "reportlab, two columns": lambda: reportlab_columns(2, 2, 24)[:2],
    "reportlab, rotated": lambda: reportlab_columns(1, 3, rotate=90)[:2],
    "reportlab, columns row by row": lambda: reportlab_rows(5),
    "reportlab, tables": lambda: reportlab_table(6),
    "reportlab, scan with text": lambda: reportlab_scan(True),
    "fpdf2, one column": lambda: fpdf_columns(1, 8),
    "fpdf2, two columns": lambda: fpdf_columns(2, 9),
    "fpdf2, owner's password": lambda: fpdf_columns(1, 9, "own"),
    "typst, one column": lambda: typst_pages(1, 11)[:2],
    "typst, two columns": lambda: typst_pages(2, 12)[:2],
    "by hand": lambda: by_hand(13),
}
"""PDFs that can be read: producer and what is special -> a function that makes the file and its text."""
