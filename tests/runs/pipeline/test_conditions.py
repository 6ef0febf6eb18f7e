"""Conditions on fields, from files to answers: before anything is ranked, by a job and an endpoint alike."""

import asyncio
import io
import json
from contextlib import suppress
from dataclasses import replace

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.errors import DataError
from raypipe.core.progress import Progress
from raypipe.core.records import Citation, Question
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline import recipe_tables
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest_folder import ingest_folder
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.serving.answerer import Answerer
from raypipe.serving.query import QueryRequest
from raypipe.store import Store, put
from raypipe.store.fields import fields_now
from raypipe.text.filters import ConditionError, Filters

RECIPE = load_recipe(str(SUPPORT / "fakes.yaml"), None, Conf((ROOT / "conf",)))
FILES = {
    "hr/leave-2024-05-01.md": "---\nteam: hr\nyear: 2024\n---\n# Leave\n\nThe leave policy grants 25 days.",
    "hr/pay.md": "---\nteam: hr\ndate: 2 March 2025\ntags: [a,b]\n---\nThe leave policy pays 12 days a year.",
    "team=legal/leave.txt": "The leave policy of counsel grants 40 days a year.",
    "notes/leave.txt": "The leave policy of notes grants 7 days a year.",
    "notes/metadata.csv": "File;Team;Pinned\nleave.txt;board;true\n",
}
ASKED = "how many days does the leave policy grant?"


def written(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


@pytest.fixture
def made(tmp_path):
    docs = written(tmp_path / "docs", FILES)
    store = Store.create(str(tmp_path / "store"))
    return docs, store, pipeline_of(store)


def pipeline_of(store, recipe=RECIPE):
    progress = Progress(io.StringIO(), silent=True)
    return Pipeline(
        store, recipe, WorkerConfig(store.uri, "transformers", "cpu", 1), TaskSizes(50, 3), inline, progress
    )


def read(made):
    docs, store, pipeline = made
    return ingest_folder(store, docs, (), pipeline.progress)


def answered(pipeline, *questions):
    put(pipeline.store, "questions", arrow.question.table(questions))
    computed = pipeline.index(questions)
    pipeline.answer(questions)
    return list(pipeline.answers(questions)), computed


def urls(store, question):
    named = store.rows("layouts", "source", sorted({h.source for h in question.hits}), ["url"])
    return sorted(named["url"].to_pylist())


def test_fields_come_from_front_matter_columns_a_table_and_folders(made):
    read(made)
    _, store, _ = made
    found = {f.name: (f.type, f.rows) for f in fields_now(store).fields()}
    assert found == {
        "date": ("date", 4),
        "folder": ("text", 4),
        "pinned": ("boolean", 1),
        "team": ("text", 4),
        "title": ("text", 4),
        "url": ("text", 4),
        "year": ("number", 1),
    }
    rows = store.scan("documents").to_pylist()
    assert {r["id"].partition("/")[2]: dict(r["fields"]) for r in rows} == {
        "hr/leave-2024-05-01.md": {"team": "hr", "year": "2024"},
        "hr/pay.md": {"date": "2025-03-02", "team": "hr"},
        "team%3Dlegal/leave.txt": {"team": "legal"},
        "notes/leave.txt": {"pinned": "true", "team": "board"},
    }


def test_ingest_names_the_front_matter_that_gives_no_field(made):
    docs, store, _ = made
    written(docs, {"a.md": "---\ncustomer: [acme]\nplaces: [Ulm, Bonn]\n---\nThe margin is 41 %."})
    ingest_folder(store, docs, (), Progress(said := io.StringIO()))
    message = "front matter that is no field, such as a list of several values: "
    assert f"{message}places (a.md), tags (hr/pay.md)" in said.getvalue()
    assert [f.rows for f in fields_now(store).fields() if f.name == "customer"] == [1]


def test_a_title_that_fields_say_is_cited_and_a_table_says_more_than_a_heading(made):
    docs, store, _ = made
    text = "---\ntitle: Acme contract\n---\n# Contract with Acme\n\nThe margin is 41 %.\n"
    table = "file,title\nb.md,Our terms\n"
    written(docs, {"a.md": text, "b.md": "# Terms\n\nNet 30.\n", "metadata.csv": table})
    read(made)
    titles = dict(zip(*(store.scan("layouts")[c].to_pylist() for c in ("url", "title")), strict=True))
    assert (titles["a.md"], titles["b.md"]) == ("Acme contract", "Our terms")
    fields = fields_now(store)
    assert {"Acme contract", "Our terms"} < set(fields.column("title").to_pylist())


def test_a_row_of_a_table_that_names_no_file_is_a_fault_until_it_is_corrected(made):
    docs, store, _ = made
    written(docs, {"notes/metadata.csv": "file,team\nuft.txt,board\n,hr\nleave.txt,board\n"})
    done = read(made)
    assert done.reasons == {"metadata": 2} and done.counts["page_faults"] == 2
    rows = {r["id"].partition("#line=")[2][:1]: r["detail"] for r in store.scan("faults").to_pylist()}
    assert "found 'notes/uft.txt'" in rows["2"] and "found ''" in rows["3"]
    before = store.version("faults")
    assert read(made).again and store.version("faults") == before, "they are not reported twice"
    written(docs, {"notes/metadata.csv": "file,team\nleave.txt,board\n"})
    read(made)
    assert store.count("faults") == 0 and store.count("documents") == 4


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (b"document,team\nleave.txt,board\n", "a column `file` or `path`.*found 'document, team'"),
        (b"\0\1\2file,team\nleave.txt,board\n", "found a file with NUL bytes"),
        (b"", "an empty file"),
        (b'file,team\nleave.txt,"board', "line 2: expected rows of a CSV file"),
        (
            b"file,team\nleave.txt,board,hr\n",
            "line 2: expected at most 2 cells.*, found 3",
        ),
        (b"file,team\nleave.txt,hr\n./leave.txt,board\n", "line 3: 'notes/leave.txt' stands in line 2, too"),
    ],
)
def test_a_table_that_loses_fields_is_refused_and_the_store_keeps_them(made, table, said):
    docs, store, _ = made
    read(made)
    before = store.version("documents")
    (docs / "notes/metadata.csv").write_bytes(table)
    with pytest.raises(DataError, match=f"notes/metadata.csv: .*{said}.*another name"):
        read(made)
    assert store.version("documents") == before
    (docs / "notes/metadata.csv").rename(docs / "notes/other.csv")
    with suppress(DataError):
        read(made)
    assert fields_now(store).field("pinned") is None


def test_a_job_and_an_endpoint_search_what_a_condition_lets_through_and_nothing_else(made):
    read(made)
    _, store, pipeline = made
    wheres = {
        "": 4,
        "team = 'hr'": 2,
        "team = 'hr' and date < '2025-01-01'": 1,
        "team != 'hr'": 2,
        "pinned = true": 1,
        "year is null": 3,
        "folder like 'team=%'": 1,
        "folder = 'team%3Dlegal' and url = 'team%3Dlegal/leave.txt'": 1,
        "folder != 'team%3Dlegal'": 3,
        "year > 2030": 0,
    }
    questions = [Question(f"q{n}", ASKED, where=where) for n, where in enumerate(wheres)]
    answers, _ = answered(pipeline, *questions)
    assert [len(urls(store, q)) for q in answers] == list(wheres.values())
    assert urls(store, answers[2]) == ["hr/leave-2024-05-01.md"]
    assert [(q.citations, q.where) for q in answers] == [(None, where) for where in wheres]
    online = Answerer(RECIPE, LocalKit(None, "transformers"), store.uri)

    async def ask(**request):
        return (await online.answer(QueryRequest(**request))).question

    for q in answers:
        seen = asyncio.run(ask(question=Question("new", ASKED + " "), filters=Filters(where=q.where)))
        assert (seen.hits, seen.order, seen.answer) == (q.hits, q.order, q.answer)
    stored = asyncio.run(ask(question=Question("new", "q1"), filters=Filters(where="date < '2025-01-01'")))
    assert stored.hits == answers[2].hits, "both conditions hold"
    with pytest.raises(ConditionError, match=r"a field that documents here have: .*team \(text\)"):
        asyncio.run(ask(question=Question("new", ASKED), filters=Filters(where="owner = 'x'")))


def test_a_question_is_searched_for_in_those_of_its_own_pages_that_match(made):
    read(made)
    _, store, pipeline = made
    places = arrow.layout.records(store.scan("layouts"))
    cited = [Citation("own", n, x.url, "", x.source, None, None) for n, x in enumerate(places)]
    whole = Question("own", ASKED, citations=tuple(cited))
    answers, _ = answered(pipeline, whole, replace(whole, id="part", where="team = 'hr'"))
    assert [len(urls(store, q)) for q in answers] == [4, 2]
    recipe = replace(RECIPE, question=tuple(only_legal(s) for s in RECIPE.question))
    [narrow, *_] = answered(pipeline_of(store, recipe), replace(whole, id="own"))[0]
    assert urls(store, narrow) == ["team%3Dlegal/leave.txt"]


def only_legal(stage):
    """The stage, which searches what legal has where it can search."""
    can = hasattr(stage.step, "where")
    return replace(stage, step=replace(stage.step, where="team = 'legal'")) if can else stage


def test_another_condition_or_field_asks_questions_again_and_embeds_nothing(made):
    read(made)
    docs, store, pipeline = made
    tables = RECIPE.texts_table, RECIPE.passages_table
    question = Question("q", ASKED, where="team = 'board'")
    [first], _ = answered(pipeline, question)
    before = [store.version(t) for t in tables]
    [same], _ = answered(pipeline, question)
    assert same == first and urls(store, first) == ["notes/leave.txt"]
    other = replace(RECIPE, question=tuple(only_legal(s) for s in RECIPE.question))
    assert other.digest() != RECIPE.digest() and other.passages_digest() == RECIPE.passages_digest()
    assert RECIPE.digest() == load_recipe(str(SUPPORT / "fakes.yaml"), None, Conf((ROOT / "conf",))).digest()
    written(docs, {"notes/metadata.csv": "file,team,cost\nleave.txt,hr,3\n"})
    written(docs, {"metadata.csv": "path,team\nhr/pay.md,board\n"})
    assert read(made).again is False
    [moved], _ = answered(pipeline, question)
    assert urls(store, moved) == ["hr/pay.md"], "a table of a folder says more than a file"
    assert [store.version(t) for t in tables] == before, "nothing was parsed, split or embedded again"
    assert fields_now(store).field("pinned") is None and fields_now(store).field("cost").type == "number"
    read(made)
    assert json.loads(json.dumps(read(made).counts))["unchanged_files"] == 4


def test_a_store_of_before_has_no_fields_and_gains_them_where_files_are_read_again(made):
    _, store, pipeline = made
    for table, columns in (
        ("documents", ["fields"]),
        *((t, ["where", "turns"]) for t in ("questions", "answers")),
    ):
        store.dataset(table).drop_columns(columns)
    assert [f.name for f in fields_now(store).fields()] == []
    assert pipeline.snapshot() and recipe_tables.require_fields(store, RECIPE, None) is None
    read(made)
    [found], _ = answered(pipeline, Question("q", ASKED, where="team = 'board'"))
    assert urls(store, found) == ["notes/leave.txt"] and found.where == "team = 'board'"


def test_a_condition_that_fits_no_field_is_refused_before_anything_is_done(made):
    read(made)
    _, store, pipeline = made
    with pytest.raises(ConditionError, match="question q: where: expected a field that documents here have"):
        answered(pipeline, Question("q", ASKED, where="owner = 'x'"))
    recipe = replace(RECIPE, question=tuple(only_legal(s) for s in RECIPE.question))
    stages = tuple(
        replace(s, step=replace(s.step, where="team > 3")) if getattr(s.step, "where", "") else s
        for s in recipe.question
    )
    with pytest.raises(ConditionError, match="stage dense: where: team: expected a text in single quotes"):
        pipeline_of(store, replace(recipe, question=stages)).index([])
    assert not store.has(RECIPE.texts_table)
