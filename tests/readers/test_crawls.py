"""Crawls become documents: one for each address, as it was fetched last."""

import gzip
import json
import zlib
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from raypipe import readers
from raypipe.core.errors import DataError
from raypipe.core.progress import Progress
from raypipe.readers import ReadCounts
from raypipe.runs.pipeline.ingest import ingest
from raypipe.store import Store

VELORA = "https://a.example/velora"
HTML = "text/html; charset=utf-8"


def page(text, title="Velora"):
    return f"<html><head><title>{title}</title></head><body><p>{text}</p></body></html>".encode()


def record(writer, url, date, body, type=HTML, status="200 OK", kind="response", **heads):
    """Writes one record, with the heads that a crawler writes."""
    headers = [("Content-Type", type), *((f"{n.title()}-Encoding", coding) for n, coding in heads.items())]
    http = StatusAndHeaders(status, headers, protocol="HTTP/1.1") if kind == "response" else None
    if kind == "request":
        http = StatusAndHeaders("GET / HTTP/1.1", [("Host", "a.example")], is_http_request=True)
    made = writer.create_warc_record(
        url,
        kind,
        payload=BytesIO(body),
        http_headers=http,
        warc_headers_dict={"WARC-Date": date},
        warc_content_type="text/plain" if kind == "conversion" else "",
    )
    writer.write_record(made)


def crawl(path, *records, gzip=True):
    """A WARC file with a first record that describes it."""
    with path.open("wb") as file:
        writer = WARCWriter(file, gzip=gzip)
        writer.write_record(writer.create_warcinfo_record(path.name, {"software": "test"}))
        for args in records:
            record(writer, *args[:3], **(args[3] if len(args) > 3 else {}))
    return path


def read(*paths, format="warc"):
    counts = ReadCounts()
    rows = list(readers.open(paths, format, counts))
    left = counts.rows + counts.faults + counts.repeated_rows + counts.empty_documents + counts.older_pages
    assert counts.lines == left + counts.blank_lines + counts.dropped_rows
    return rows, counts


@pytest.mark.parametrize("packed", [True, False])
def test_a_page_is_a_document_named_by_its_address_with_title_and_text(tmp_path, packed):
    name = "crawl.warc.gz" if packed else "crawl.warc"
    file = crawl(tmp_path / name, (VELORA, "2024-03-05T23:18:31Z", page("Äpfel.")), gzip=packed)
    assert readers.looks_like([file]) == readers.looks_like([tmp_path]) == "warc"
    [row], counts = read(file)
    assert (row.document.id, row.document.title, row.where) == (VELORA, "Velora", f"{name}:2")
    assert row.sources[0].kind == "page" and "<p>Äpfel.</p>" in row.sources[0].content
    assert (row.layout.url, row.layout.source) == (VELORA, row.document.source)
    assert counts.bytes_read == file.stat().st_size and counts.other_records == 1


def test_of_an_address_the_last_fetch_counts_whatever_the_order_of_files(tmp_path):
    new = crawl(tmp_path / "a.warc.gz", (VELORA, "2024-03-05T00:00:00Z", page("second")))
    old = crawl(
        tmp_path / "b.warc.gz",
        (VELORA, "2023-01-01T00:00:00Z", page("first")),
        ("https://a.example/b", "2023-01-01T00:00:00Z", page("other")),
    )
    rows, counts = read(new, old)
    assert ["second" in r.sources[0].content for r in rows] == [True, False]
    assert [r.document.id for r in rows] == [VELORA, "https://a.example/b"]
    assert (counts.rows, counts.older_pages, counts.files) == (2, 1, 2)


def test_what_is_no_page_is_counted_and_left_out(tmp_path):
    at = "2024-03-05T00:00:00Z"
    file = crawl(
        tmp_path / "a.warc.gz",
        (VELORA, at, b"", {"kind": "request"}),
        (VELORA, at, page("gone"), {"status": "404 Not Found"}),
        ("https://a.example/x.png", at, b"\x89PNG", {"type": "image/png"}),
        ("https://a.example/empty", at, b"  \n"),
        ("https://a.example/note", at, b"A note.", {"type": "text/plain"}),
        ("https://a.example/packed", at, gzip.compress(page("unpacked")), {"content": "gzip"}),
    )
    rows, counts = read(file)
    assert [(r.document.id[-6:], r.sources[0].kind) for r in rows] == [
        ("e/note", "document"),
        ("packed", "page"),
    ]
    assert "unpacked" in rows[1].sources[0].content
    assert (counts.other_records, counts.empty_documents, counts.rows) == (4, 1, 2)


CODINGS = {
    "gzip": gzip.compress(page("body")),
    "X-Gzip": gzip.compress(page("body")),
    "deflate": zlib.compress(page("body")),
    "br": pa.compress(page("body"), "brotli", asbytes=True),
    "zstd": pa.compress(page("body"), "zstd", asbytes=True),
    "gzip, br": pa.compress(gzip.compress(page("body")), "brotli", asbytes=True),
    "br ": page("body"),  # unpacked by the crawler
    "utf-8": page("body"),  # no coding at all
}


@pytest.mark.parametrize(("coding", "packed"), CODINGS.items(), ids=CODINGS)
def test_a_packed_body_is_unpacked_whatever_its_coding(tmp_path, coding, packed):
    [row], _ = read(crawl(tmp_path / "a.warc", (VELORA, "2024", packed, {"content": coding}), gzip=False))
    assert row.sources[0].content == page("body").decode()


def test_a_body_that_was_packed_for_its_way_alone_is_unpacked(tmp_path):
    packed = gzip.compress(page("body"))
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed)
    [row], _ = read(crawl(tmp_path / "a.warc", (VELORA, "2024", sent, {"transfer": "gzip, chunked"})))
    assert row.sources[0].content == page("body").decode()


def test_a_body_that_cannot_be_unpacked_is_a_fault_that_names_its_coding(tmp_path):
    harmed = pa.compress(page("body " * 99), "brotli", asbytes=True)[3:]
    at, text = "2024", {"type": "text/plain"}
    file = crawl(
        tmp_path / "a.warc",
        (VELORA, at, harmed, text | {"content": "br"}),
        ("https://a.example/b", at, gzip.compress(page("body" * 99))[1:], text | {"content": "compress"}),
    )
    rows, counts = read(file)
    assert [r.faults[0].reason for r in rows] == ["unsupported"] * 2 and counts.faults == 2
    assert "'br'" in rows[0].faults[0].detail and "'compress'" in rows[1].faults[0].detail


def test_the_texts_of_common_crawls_wet_files_are_documents(tmp_path):
    file = crawl(
        tmp_path / "CC-MAIN-1.warc.wet.gz", (VELORA, "2024", b"\xc3\x84pfel.", {"kind": "conversion"})
    )
    assert readers.looks_like([file]) == "warc"
    [row], _ = read(file)
    assert (row.document.id, row.sources[0].kind, row.sources[0].content) == (VELORA, "document", "Äpfel.")


def test_the_servers_encoding_stands_before_that_of_the_page(tmp_path):
    said = page("кот").decode().encode("koi8-r").replace(b"<head>", b'<head><meta charset="iso-8859-1">')
    file = crawl(
        tmp_path / "a.warc", (VELORA, "2024", said, {"type": "text/html; charset=KOI8-R"}), gzip=False
    )
    [row], _ = read(file)
    assert "кот" in row.sources[0].content


def test_a_page_that_is_too_large_is_a_fault_and_the_others_are_read(tmp_path):
    large = b"<p>" + b"x" * (20 * 2**20 + 1)
    file = crawl(
        tmp_path / "a.warc.gz", (VELORA, "2024", large), ("https://a.example/b", "2024", page("small"))
    )
    (bad, good), counts = read(file)
    assert bad.faults[0].reason == "too_large" and good.document.id == "https://a.example/b"
    assert (counts.faults, counts.rows) == (1, 1)


HARM = {
    "cut": lambda b: b[: len(b) - 40],
    "flipped": lambda b: b[:-60] + bytes([b[-60] ^ 255]) + b[-59:],
    "other": lambda b: b"no crawl at all\n" * 9,
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_a_damaged_file_is_an_error_with_its_name(tmp_path, harm):
    file = crawl(tmp_path / "a.warc.gz", (VELORA, "2024", page("text " * 500)))
    file.write_bytes(harm(file.read_bytes()))
    with pytest.raises(DataError, match=r"a\.warc\.gz"):
        read(file)


def test_a_folder_without_a_crawl_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"expected files named \.warc"):
        read(tmp_path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_of_pages_that_say_when_they_were_fetched_keep_the_last(tmp_path, kind):
    pages = [
        {"url": VELORA, "html": page("second").decode(), "fetched_at": "2024-03-05T00:00:00Z"},
        {"url": VELORA, "html": page("first").decode(), "fetched_at": "2023-03-05T00:00:00Z"},
        {"url": "https://a.example/b", "html": page("other").decode(), "fetched_at": "2023-03-05T00:00:00Z"},
    ]
    file = tmp_path / f"pages.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(pages), file)
    else:
        file.write_text("\n".join(map(json.dumps, pages)))
    rows, counts = read(file, format=readers.looks_like([file]))
    assert [r.document.id for r in rows] == [VELORA, "https://a.example/b"]
    assert "second" in rows[0].sources[0].content and rows[0].layout.url == VELORA
    assert counts.older_pages == 1


FORMS = {  # of dates: an older one, a newer one
    "ISO with a space": ("2024-03-05 23:18:31", "2024-06-05 03:18:31"),
    "ISO with zones": ("2024-03-05T23:18:31+05:00", "2024-03-05T20:18:31Z"),
    "ISO with fractions": ("2024-03-05T23:18:31Z", "2024-03-05T23:18:31.5Z"),
    "ISO without dashes": ("20240305T231831Z", "20241005T031831Z"),
    "PostgreSQL": ("2024-03-05 23:18:31+00", "2024-03-05 23:18:31.25+00"),
    "BigQuery": ("2024-03-05 23:18:31 UTC", "2024-06-05 03:18:31.000000 UTC"),
    "Go": ("2024-03-05 23:18:31 +0000 UTC", "2024-06-05 03:18:31 +0000 UTC"),
    "HTTP": ("Wed, 06 Mar 2024 03:19:02 GMT", "Fri, 06 Sep 2024 03:19:02 GMT"),
    "HTTP of old": ("Wednesday, 06-Mar-24 03:19:02 GMT", "Friday, 06-Sep-24 03:19:02 GMT"),
    "asctime": ("Wed Mar  6 03:19:02 2024", "Fri Sep  6 03:19:02 2024"),
    "mail": ("Wed, 6 Mar 2024 23:19:02 -0800 (PST)", "Thu, 7 Mar 2024 08:19:02 +0000"),
    "CRAG": ("12/05/2023, 23:18:31 PT", "03/05/2024, 23:18:31 PT"),
    "seconds": (999_999_999, 1_709_680_711),
    "milliseconds as text": ("1709680711000", "1717243200000"),
    "seconds with fractions": (1709680711.25, 1717243200.5),
    "a crawl's index": ("20231205231831", "20240305231831"),
    "words": ("March 5, 2024", "5 September 2024"),
    "SQL Server": ("Dec 31 2023 12:00PM", "Jun  1 2024 12:00AM"),
    "Oracle": ("01-JUN-24 09.00.00.000000 AM", "01-JUN-24 01.00.00.000000 PM"),
    "the United States": ("12/31/2023 11:00:00 PM", "1/1/2024 1:00:00 AM"),
    "JSON of .NET": ("/Date(1709680711000)/", "/Date(1717243200000)/"),
    "MongoDB": ({"$date": "2024-03-05T23:18:31Z"}, {"$date": {"$numberLong": "1717243200000"}}),
    "Date.toString()": (
        "Wed Mar 06 2024 03:19:02 GMT+0000 (Coordinated Universal Time)",
        "Fri Sep 06 2024 03:19:02 GMT+0200 (Central European Summer Time)",
    ),
}


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_the_newest_page_wins_whatever_form_its_date_has(tmp_path, form, newest_first):
    pages = [
        {"url": VELORA, "text": text, "last_modified": date}
        for text, date in zip(("old", "new"), FORMS[form], strict=True)
    ]
    file = tmp_path / "pages.jsonl"
    file.write_text("\n".join(map(json.dumps, pages[::-1] if newest_first else pages)))
    [row], counts = read(file, format="rows")
    assert (row.sources[0].content, counts.older_pages) == ("new", 1)


@pytest.mark.parametrize("date", ["last week", "05/03/2024", "12:00", "2024-13-01", "infinity", [2024], True])
def test_a_date_that_cannot_be_read_or_may_be_two_is_the_rows_fault(tmp_path, date):
    file = tmp_path / "pages.jsonl"
    rows = [{"url": VELORA, "text": "a", "modified": "2024"}, {"url": "b", "text": "b", "modified": date}]
    file.write_text("\n".join(map(json.dumps, rows)))
    (good, bad), _ = read(file, format="rows")
    assert good.used and bad.faults[0].detail.startswith("modified: expected a date")


def test_a_page_that_is_crawled_again_takes_the_place_of_the_one_before(tmp_path):
    store = Store.create(str(tmp_path / "store"))
    quiet = Progress(None, silent=True)
    first = crawl(
        tmp_path / "1.warc.gz",
        (VELORA, "2023-01-01T00:00:00Z", page("first")),
        ("https://a.example/b", "2023-01-01T00:00:00Z", page("stays")),
    )
    ingest(store, [first], "warc", quiet)
    assert store.count("sources") == 2
    summary = ingest(
        store,
        [crawl(tmp_path / "2.warc.gz", (VELORA, "2024-01-01T00:00:00Z", page("second")))],
        "warc",
        quiet,
    )
    texts = store.scan("sources", ["content"])["content"].to_pylist()
    assert sorted("second" in t for t in texts) == [False, True] and not any("first" in t for t in texts)
    assert [r.table for r in summary.replaced] == ["documents"]
