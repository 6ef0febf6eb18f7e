"""Limits in a child process: a page that breaks them is refused with a reason, all others are done."""

import os
import signal
import threading
import time

import psutil
import pytest

from raypipe.core.records import Fault
from raypipe.core.sandbox import Cancelled
from raypipe.text.page_parser import ParsedPage, ParseJob, ParserLimits, SandboxedParser, to_text

GOOD = [ParseJob(b"<p>one"), ParseJob(b"<p>two<p hidden>x"), ParseJob("<p>dreißig 😀".encode())]
SLOW = ParseJob(b"<div>x" * 40_000, "lxml", "bs4")  # some .9 s of CPU for BeautifulSoup


def texts(answers):
    return [a.text if isinstance(a, ParsedPage) else a.reason for a in answers]


@pytest.fixture
def quick():
    with SandboxedParser(ParserLimits(cpu_s=0.4)) as limited:
        yield limited


def children():
    return [p for p in psutil.Process().children() if "raypipe.core.sandbox" in p.cmdline()]


def test_a_child_says_what_this_process_would_say(quick):
    for job, answer in zip(GOOD, quick.run(GOOD), strict=True):
        assert answer == to_text(job.html.decode())


@pytest.mark.slow
def test_a_page_over_the_time_limit_is_refused_and_the_others_are_done(quick):
    start = time.monotonic()
    answers = quick.run([GOOD[0], SLOW, GOOD[1], SLOW, GOOD[2]])
    assert texts(answers) == ["one", "timeout", "two x", "timeout", "dreißig 😀"]
    assert "0.4 s of CPU" in answers[1].detail and not answers[1].transient
    assert time.monotonic() - start < 20


def test_time_on_the_wall_is_transient_as_load_may_have_taken_it():
    with SandboxedParser(ParserLimits(wall_s=0.3, cpu_s=60)) as limited:
        (refused,) = limited.run([SLOW])
    assert isinstance(refused, Fault) and refused.reason == "timeout" and refused.transient


@pytest.mark.drill
@pytest.mark.slow
def test_a_page_that_only_comparing_made_slow_is_parsed_without(quick):
    slow_to_compare = ParseJob(SLOW.html, compare=True)
    (page,) = quick.run([slow_to_compare])
    assert isinstance(page, ParsedPage) and page.way == "fast"


def test_a_page_over_the_memory_limit_is_refused_and_the_others_are_done():
    with SandboxedParser(ParserLimits(memory_bytes=40 << 20, cpu_s=20)) as limited:
        answers = limited.run([GOOD[0], ParseJob(b"<i>x" * 2_000_000), GOOD[1]])
    assert texts(answers) == ["one", "memory", "two x"]


def test_a_page_that_is_too_large_or_no_html_never_reaches_a_parser():
    limited = SandboxedParser(ParserLimits(page_bytes=1000))
    assert texts(limited.run([ParseJob(b"x" * 1001), ParseJob(b"%PDF-1.4")])) == ["too_large", "not_html"]
    assert children() == []


def test_fifty_megabytes_are_refused_by_default():
    assert texts(SandboxedParser().run([ParseJob(b"x" * 50_000_000)])) == ["too_large"]


def test_what_a_parser_raises_is_the_pages_refusal():
    with SandboxedParser() as limited:
        answers = limited.run([ParseJob(b"&#" + b"9" * 5000 + b";", "html.parser", "bs4"), GOOD[0]])
    assert texts(answers) == ["unparsable", "one"]


def test_a_child_that_someone_kills_costs_no_page(quick):
    quick.run(GOOD)
    (child,) = children()
    os.kill(child.pid, signal.SIGKILL)
    assert texts(quick.run(GOOD)) == ["one", "two x", "dreißig 😀"]


@pytest.mark.slow
def test_many_pages_and_large_ones_pass_in_order(quick):
    jobs = [ParseJob(f"<p>{i} ".encode() + b"word " * (i % 7) * 20_000) for i in range(60)]
    assert [t.split()[0] for t in texts(quick.run(jobs))] == [str(i) for i in range(60)]


def test_threads_share_one_child(quick):
    found = [None] * 4
    threads = [
        threading.Thread(target=lambda i=i: found.__setitem__(i, texts(quick.run(GOOD)))) for i in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [["one", "two x", "dreißig 😀"]] * 4
    assert len(children()) == 1


@pytest.mark.slow
def test_pages_that_nobody_waits_for_are_not_read_and_the_next_are(quick):
    stop = threading.Event()
    later = threading.Timer(0.2, stop.set)
    later.start()
    with pytest.raises(Cancelled):
        quick.run([SLOW] * 50, stop)
    later.join()
    with pytest.raises(Cancelled):
        quick.run(GOOD, stop)  # had waited for its turn
    assert texts(quick.run(GOOD)) == ["one", "two x", "dreißig 😀"]


def test_no_child_outlives_the_last_reference():
    limited = SandboxedParser()
    limited.run(GOOD)
    (child,) = children()
    del limited
    assert not psutil.pid_exists(child.pid)


def test_no_child_outlives_its_killed_parent(tmp_path):
    import subprocess
    import sys

    code = (
        "import os, signal, psutil; from raypipe.text.page_parser import *; "
        "x = SandboxedParser(); x.run([ParseJob(b'<p>a')]); "
        "print(psutil.Process().children()[0].pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    pid = int(out.stdout)
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the child lived on")


def test_one_page_comes_as_a_text_or_a_fault():
    with SandboxedParser() as limited:
        assert limited.parse("<p>a\ud800") == ("a\ufffd", None)
        assert texts(limited.run([ParseJob(b"<p>b", "html.parser", "bs4")])) == ["b"]
        text, fault = limited.parse("%PDF-1.4")
    assert text is None and (fault.step, fault.reason, fault.transient) == ("parse", "not_html", False)
