"""Parse on tables of sources: kinds, faults, comparisons, and a child process that a table never notices."""

import asyncio
import time

import psutil
import pyarrow as pa
import pytest

from raypipe.core.arrow import corpus_table, fault_column
from raypipe.core.records import Fault, Source, source_id
from raypipe.models.kit import LocalKit
from raypipe.steps.parse import COMPARED_EVERY, Parse
from raypipe.text.page_parser import ParseJob, ParserLimits, SandboxedParser


def table(*contents, kind="page"):
    return corpus_table([Source(source_id(kind, c), kind, c) for c in contents])


def parse(sources, **fields):
    return asyncio.run(Parse(**fields).open(LocalKit(None))(sources))


def reasons(parsed):
    return [f and f["reason"] for f in parsed["fault"].to_pylist()]


def test_a_page_becomes_text_with_its_hidden_parts():
    (row,) = parse(table("<p>Hello  <b>world</b><p hidden>obey me")).to_pylist()
    assert (row["text"], row["hidden"]) == ("Hello world obey me", [{"start": 12, "end": 19}])
    assert row["kind"] == "page" and row["parser"] in ("fast", "compared") and row["fault"] is None


def test_blocks_stand_next_to_the_text_of_pages_and_of_documents_with_their_title():
    (page,) = parse(table("<title>Emma</title><p>Hello<p>world")).to_pylist()
    (text,) = parse(table("Emma\nIt sold\nwell.\n\n- so", kind="document"), kinds=("document",)).to_pylist()
    kinds = [[(b["kind"], r["text"][b["start"] : b["end"]]) for b in r["blocks"]] for r in (page, text)]
    assert kinds[0] == [("title", "Emma"), ("paragraph", "Hello"), ("paragraph", "world")]
    assert kinds[1] == [("title", "Emma"), ("paragraph", "It sold well."), ("item", "- so")]


def test_a_snippet_is_plain_text_that_is_only_folded():
    (row,) = parse(table("1 <b> 2\n\n3\0", kind="snippet")).to_pylist()
    assert (row["text"], row["hidden"], row["parser"]) == ("1 <b> 2 3", [], "plain")


def test_sources_of_other_kinds_leave_no_row():
    sources = pa.concat_tables([table("<p>a"), table("b", kind="name"), table("c", kind="document")])
    assert parse(sources, kinds=("page", "document"))["text"].to_pylist() == ["a", "c"]


def test_a_page_that_cannot_be_done_is_a_fault_and_the_others_are_done():
    pages = ["<p>a", "%PDF-1.7 x", "<p>" + "x" * 20_000_000, "<p><img>", "<p>b"]
    parsed = parse(table(*pages))
    assert reasons(parsed) == [None, "not_html", "too_large", None, None]
    assert parsed["text"].to_pylist() == ["a", None, None, "", "b"]
    assert parsed["hidden"].null_count == parsed["parser"].null_count == 2


def test_a_null_page_is_a_fault():
    sources = table("<p>a", "<p>b").set_column(2, "content", pa.array([None, "<p>b"], pa.large_string()))
    assert reasons(parse(sources)) == ["null", None]


def test_a_row_that_came_with_a_fault_keeps_it():
    fault = Fault("ingest", "broken", "found nothing", True)
    sources = table("<p>a", "<p>b").set_column(3, "fault", fault_column([fault, None]))
    parsed = parse(sources)
    assert reasons(parsed) == ["broken", None] and parsed["text"].to_pylist() == [None, "b"]


@pytest.mark.slow
def test_one_page_in_256_is_compared_chosen_by_its_id():
    pages = [f"<p>page {i}" for i in range(4 * COMPARED_EVERY)]
    once = parse(table(*pages))
    compared = [w == "compared" for w in once["parser"].to_pylist()]
    assert 0 < sum(compared) < 16
    parts = [parse(table(*pages[i : i + 300])) for i in range(0, len(pages), 300)]
    assert pa.concat_tables(parts).equals(once)


def test_a_compared_page_that_differs_gets_beautifulsoups_text():
    chosen = next(
        p
        for i in range(10**6)
        if int(source_id("page", p := f"<p>wo<tr>rd {i}")[:8], 16) % COMPARED_EVERY == 0
    )
    (row,) = parse(table(chosen)).to_pylist()
    assert row["parser"] == "fallback" and row["text"].startswith("wo rd")


def test_html_parser_is_its_own_text():
    (row,) = parse(table("<p>a<div/>b"), html="html.parser", via="bs4").to_pylist()
    assert (row["text"], row["parser"]) == ("a b", "bs4")


@pytest.mark.parametrize("fields", [{"html": "html.parser"}, {"kinds": ()}])
def test_what_cannot_be_is_refused_when_the_recipe_is_read(fields):
    with pytest.raises(ValueError):
        Parse(**fields)


@pytest.mark.slow
def test_the_event_loop_stays_free_while_pages_are_parsed():
    async def beat():
        beats = 0
        work = asyncio.ensure_future(
            Parse(via="bs4").open(LocalKit(None))(table("<p>" + "<i>word " * 30_000 + "</i>"))
        )
        while not work.done():
            await asyncio.sleep(0.01)
            beats += 1
        return beats, (await work).num_rows

    beats, rows = asyncio.run(beat())
    assert rows == 1 and beats > 5


@pytest.mark.ray
def test_parse_runs_in_ray_tasks_and_actors_and_leaves_no_child(local_ray):
    import ray

    @ray.remote(num_cpus=1)  # workers cannot import this file, so what they run names the package alone
    def task(sources):
        found = asyncio.run(Parse().open(LocalKit(None))(sources))
        with SandboxedParser(ParserLimits(cpu_s=0.3)) as limited:
            (refused,) = limited.run([ParseJob(b"<div>x" * 100_000, "lxml", "bs4")])
        return found["text"].to_pylist(), refused.reason, len(psutil.Process().children())

    @ray.remote(num_cpus=1)
    class Actor:
        def __init__(self):
            self.build = Parse().open(LocalKit(None))

        async def work(self, sources):
            found = (await self.build(sources))["text"].to_pylist()
            return found, [p.pid for p in psutil.Process().children()]

    pages = table("<p>a", "%PDF-1.7 x", "<p>b")
    assert ray.get(task.remote(pages), timeout=60) == (["a", None, "b"], "timeout", 0)
    actor = Actor.remote()
    texts, (child,) = ray.get(actor.work.remote(pages), timeout=60)
    assert texts == ["a", None, "b"]
    ray.kill(actor)
    for _ in range(200):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    pytest.fail("the child outlived its actor")
