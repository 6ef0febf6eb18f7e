"""Pages that are images: read by text recognition where it is installed, named with the cure elsewhere."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import scans
from checkout import ROOT

from raypipe.readers.documents import DOCUMENT_LIMITS, DocumentReader
from raypipe.readers.documents.ocr import engine
from raypipe.readers.documents.reader import reader_of, reads_as
from raypipe.readers.rows import UnusableLine

read_by_rapidocr = pytest.mark.skipif(
    not engine().startswith("rapidocr"), reason="rapidocr is not installed: pip install 'raypipe[ocr]'"
)
TABLE = ["| Model | Weight | Price |", "| IM-60 | 17.2 kg | 1,250.00 |", "| IM-90 | 24.8 kg | 2,400.50 |"]


@pytest.fixture(scope="module")
def reader():
    made = DocumentReader()
    yield made
    made.close()


def fault(reader, name, data):
    with pytest.raises(UnusableLine) as e:
        reader.read(name, data)
    return e.value.fault


def says_all(found):
    """Whether a text is that of `scans.LINES`, but for spaces, which recognition may miss between words."""
    text = "".join(found.content.split())
    return "TheboathouseinAlderLaneislettotherowingclub" in text and "1,450eurosamonth" in text


WITHOUT = """
import importlib.util, json, shutil, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "rapidocr" else find(name, *more)
shutil.which = lambda name: None
import scans
from raypipe.readers.documents import DocumentReader
from raypipe.readers.rows import UnusableLine
reader, said = DocumentReader(), []
image = scans.picture()
for name, data in (("a.pdf", scans.mixed_pdf(image)), ("b.png", scans.image_file("PNG", [image]))):
    try:
        found = reader.read(name, data)
        said.append([found.content, [(n, f.reason, f.detail) for n, f in found.faults], found.scans])
    except UnusableLine as e:
        said.append([e.fault.reason, e.fault.detail])
reader.close()
print(json.dumps(said))
"""


def test_without_an_engine_a_scan_is_named_with_the_command_that_would_read_it():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests/support")])}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], env=env, capture_output=True, text=True, timeout=120
    )
    (text, faults, has_scans), (reason, detail) = json.loads(done.stdout)
    assert "its words need no recognition" in text and has_scans
    assert [(n, why) for n, why, _ in faults] == [(2, "no_text"), (3, "no_text")] and reason == "no_text"
    assert all("pip install 'raypipe[ocr]'" in said for said in (faults[0][2], detail))


def test_a_file_is_read_again_by_another_engine_only_if_it_has_scans():
    was = reader_of("pdf", scans=True).removesuffix(f"/{engine()}")
    assert reads_as(reader_of("pdf")) and reads_as(reader_of("pdf", scans=True)) and reads_as(reader_of("md"))
    assert reads_as(f"{was}/{engine()}") and not reads_as(f"{was}/rapidocr 0.1")
    assert not reads_as(reader_of("none").removesuffix(engine()) + "tesseract 0.1 eng")
    assert reader_of("pdf") == was and "/" not in engine()


@read_by_rapidocr
def test_the_pages_of_a_scan_are_read_with_their_tables_and_confidence(reader):
    found = reader.read("mixed.pdf", scans.mixed_pdf(scans.picture(turned=90, askew=1)))
    assert says_all(found) and [row for row in TABLE if row in found.content] == TABLE
    assert not found.faults and (found.recognised, found.scans) == (1, True)
    first, second, third = (page.label for page in found.pages)
    assert first == "1" and second.startswith("2 (OCR 0.9") and third == "3"
    assert found.content.startswith("This page has been typed")


@read_by_rapidocr
@pytest.mark.drill
@pytest.mark.parametrize("how", [{}, {"turned": 180}, {"turned": 270}, {"askew": 3, "noise": 0.3}], ids=str)
def test_a_scan_may_be_turned_askew_and_noisy(reader, how):
    found = reader.read("x.pdf", scans.image_file("PDF", [scans.picture(**how)]))
    assert says_all(found) and [row for row in TABLE if row in found.content] == TABLE


@read_by_rapidocr
@pytest.mark.drill
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_an_image_is_a_document_and_a_tiff_has_pages(reader, kind):
    second = scans.picture(["The second page has a few words"], size=(900, 300))
    found = reader.read("letter", scans.image_file(kind, [scans.picture(), second]))
    assert says_all(found) and found.kind == "image"
    pages = 2 if kind == "TIFF" else 1
    assert (len(found.pages), found.recognised) == (pages, pages)
    assert ("second page" in found.content) == (pages == 2)


@read_by_rapidocr
@pytest.mark.drill
def test_what_no_engine_can_read_has_a_reason_and_costs_itself(reader):
    noise = scans.Image.effect_noise((300, 300), 200)
    assert fault(reader, "photo.png", scans.image_file("PNG", [noise])).reason == "no_text"
    assert fault(reader, "empty.png", scans.image_file("PNG", [scans.picture([])])).reason == "blank"
    assert fault(reader, "huge.png", scans.huge_png()).reason == "too_large"
    whole = scans.image_file("PNG", [scans.picture()])
    assert fault(reader, "cut.png", whole[: len(whole) // 2]).reason == "broken"
    assert fault(reader, "cut.jpg", b"\xff\xd8\xff" + bytes(99)).reason == "broken"
    assert says_all(reader.read("whole.png", whole))


@read_by_rapidocr
@pytest.mark.drill
@pytest.mark.parametrize(
    ("limits", "reason"), [({"ocr_cpu_s": 0.5}, "timeout"), ({"ocr_memory_bytes": 1 << 28}, "memory")]
)
def test_a_page_over_a_limit_costs_that_page(limits, reason):
    reader = DocumentReader(replace(DOCUMENT_LIMITS, **limits))
    found = reader.read("x.pdf", scans.mixed_pdf(scans.picture()))
    reader.close()
    assert found.faults[0][0] == 2 and found.faults[0][1].reason in (reason, "crash", "broken")
    assert "its words need no recognition" in found.content


@read_by_rapidocr
@pytest.mark.drill
def test_a_child_that_is_killed_while_it_reads_is_started_again(reader):
    reader.read("x.png", scans.image_file("PNG", [scans.picture()]))  # it has started
    child = reader._scans._child._process.pid
    killer = threading.Thread(target=lambda: (time.sleep(0.2), os.kill(child, signal.SIGKILL)))
    killer.start()
    found = reader.read("x.pdf", scans.mixed_pdf(scans.picture(turned=90)))
    killer.join()
    assert says_all(found) and not found.faults and reader._scans._child._process.pid != child


@pytest.mark.skipif(
    not engine().startswith("tesseract"), reason="tesseract is not on PATH, or rapidocr reads in its place"
)
@pytest.mark.parametrize("turned", [0, pytest.param(90, marks=pytest.mark.drill)])
def test_tesseract_reads_where_rapidocr_is_not(reader, turned):
    assert "eng" in engine()
    found = reader.read("x.pdf", scans.image_file("PDF", [scans.picture(turned=turned)]))
    assert says_all(found) and [row for row in TABLE if row in found.content] == TABLE
