"""Progress as lines in a log, as a bar on a terminal, and not at all."""

from __future__ import annotations

import io
import queue

import pytest

from raypipe.core.progress import IN_HAND, Progress, heartbeat


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_every_ten_seconds_and_one_at_the_end() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress(out, now=clock) as progress:
        pages = progress.task("parsed", "pages", 100)
        for _ in range(50):
            clock.at += 1
            pages.advance(2)
    assert out.getvalue().splitlines() == [
        "parsed 20/100 pages, 20 %, ETA 0:40",
        "parsed 40/100 pages, 40 %, ETA 0:30",
        "parsed 60/100 pages, 60 %, ETA 0:20",
        "parsed 80/100 pages, 80 %, ETA 0:10",
        "parsed 100/100 pages in 0:50",
    ]


def test_the_time_that_models_take_to_load_is_not_expected_again_for_each_unit() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress(out, now=clock) as progress:
        pages = progress.task("embedded", "pages", 100)
        for seconds in (95, 10):
            clock.at += seconds
            pages.advance(10)
    assert out.getvalue().splitlines()[:2] == [
        "embedded 10/100 pages, 10 %",
        "embedded 20/100 pages, 20 %, ETA 1:20",
    ]


def test_work_of_unknown_or_no_size_has_no_eta() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress(out, now=clock) as progress:
        unknown = progress.task("read", "rows", None)
        none = progress.task("embedded", "chunks", 0)
        clock.at += 11
        unknown.advance(7)
        none.advance(0)
    assert out.getvalue().splitlines() == [
        "read 7 rows, 0:11 so far",
        "read 7 rows in 0:11",
        "embedded 0/0 chunks in 0:11",
    ]


def test_work_that_fails_is_not_said_to_be_done() -> None:
    out, clock = io.StringIO(), Clock()
    with pytest.raises(OSError), Progress(out, now=clock) as progress:
        progress.task("parsed", "pages", 9).advance(3)
        clock.at += 5
        raise OSError
    assert out.getvalue() == "parsed 3/9 pages stopped after 0:05\n"


def test_a_clock_stops_when_its_work_ends_and_says_so_once() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress(out, now=clock) as progress:
        with progress.task("parsed", "sources", 4) as sources:
            clock.at += 3
            sources.advance(4)
        clock.at += 60
        with pytest.raises(OSError), progress.task("split", "texts", 4):
            clock.at += 2
            raise OSError
        clock.at += 60
    assert out.getvalue().splitlines() == ["parsed 4/4 sources in 0:03", "split 0/4 texts stopped after 0:02"]


def test_units_inside_a_part_count_until_it_ends_and_others_stand_next_to_those_of_the_work() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress(out, now=clock) as progress:
        passages = progress.task("embedded", "passages", 200, inside="passages")
        sources = progress.task("indexed", "sources", 4, inside="passages embedded")
        for task in (passages, sources):
            with IN_HAND.heard_by(task.within), IN_HAND.of("000000"):
                for _ in range(2):
                    clock.at += 10
                    IN_HAND.add(50)
            IN_HAND.add(1)  # of no part
        passages.advance(100, "000000")  # with those that were cached
        sources.advance(2, "000000", 100)
        clock.at += 10
        sources.within("000001", 7)
    assert out.getvalue().splitlines() == [
        "embedded 50/200 passages, 25 %",
        "embedded 100/200 passages, 50 %, ETA 0:20",
        "indexed 0/4 sources, 50 passages embedded, 0 %, 0:30 so far",
        "indexed 0/4 sources, 100 passages embedded, 0 %, 0:40 so far",
        "embedded 100/200 passages, 50 %, ETA 1:00",
        "indexed 2/4 sources, 107 passages embedded, 50 %",
        "embedded 100/200 passages in 0:50",
        "indexed 2/4 sources, 107 passages embedded in 0:50",
    ]


def test_work_that_does_not_move_says_so_every_ten_seconds() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress(out, now=clock) as progress:
        questions = progress.task("answered", "questions", 20)
        for seconds in (9, 1, 1, 9):
            clock.at += seconds
            progress.look()
        questions.advance(20)
    assert out.getvalue().splitlines() == [
        "answered 0/20 questions, 0 %, 0:10 so far",
        "answered 0/20 questions, 0 %, 0:20 so far",
        "answered 20/20 questions in 0:20",
    ]


def test_silence_is_silent() -> None:
    for stream in (io.StringIO(), Terminal()):
        clock = Clock()
        with Progress(stream, silent=True, now=clock) as progress:
            task = progress.task("parsed", "pages", 2)
            clock.at += 20
            task.advance(2)
        assert stream.getvalue() == "" and task.done == 2


def test_the_clock_of_a_bar_stops_too() -> None:
    now = iter([float(i) for i in range(1000)])
    with Progress(Terminal(), now=lambda: next(now)) as progress:
        with progress.task("parsed", "sources", 4):
            pass
        [bar] = progress.bars.tasks
        assert bar.stop_time is not None and bar.elapsed == bar.stop_time - bar.start_time


def test_a_terminal_gets_a_bar() -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        progress.task("parsed [red]", "pages", 2).advance(2)
    assert "parsed [red]" in stream.getvalue() and "2/2" in stream.getvalue() and "100%" in stream.getvalue()


def test_tokens_a_second_are_counted_from_the_first_and_not_from_the_start_of_the_engine():
    clock = iter([0.0, 60.0, 60.0, 70.0])
    out = io.StringIO()
    with Progress(out, now=lambda: next(clock)) as progress:
        task = progress.task("answered", "questions", 20)
        task.wrote(0, 50.0)  # a step that asks no model
        task.wrote(400, 20.0)
        task.advance(10)
    assert out.getvalue().splitlines() == [
        "answered 10/20 questions, 50 %, 20 tokens/s",
        "answered 10/20 questions in 1:10, 13 tokens/s",
    ]


def test_work_without_a_count_says_its_phase_until_it_ends() -> None:
    said: queue.Queue[str] = queue.Queue()
    with heartbeat(said.put, "starting", every_s=0.001) as now:
        assert all(said.get(timeout=60).startswith("starting (") for _ in range(2))
        now("loading")
        while not said.get(timeout=60).startswith("loading ("):
            pass
    while not said.empty():
        said.get()
    with pytest.raises(queue.Empty):
        said.get(timeout=0.05)
