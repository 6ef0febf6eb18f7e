"""Questions about a store that holds nothing are refused at once, with the command that mends it; plans and
dry runs write nothing; an endpoint says which store it searches."""

import json
from dataclasses import replace

import pytest
from chat_server import serving
from checkout import SUPPORT
from reruns import Bench

from raypipe.api.cli.main import main
from raypipe.api.endpoint import ServeArgs
from raypipe.api.session import from_environment
from raypipe.evaluation.golds import stored_questions
from raypipe.store import Store

FAKES = SUPPORT / "fakes.yaml"
MODELS = ["--models", SUPPORT / "fake_models.yaml"]
ASKED = [{"question": "who founded it?", "answer": "Ann"}, {"question": "where?", "answer": "Oslo"}]
DOCUMENT = {"id": "d", "title": "Oslo", "text": "Ann founded it in Oslo. " * 30}


def lines(file, rows):
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder that is the home, with questions of its own in faq.jsonl."""
    for name, value in {"HOME": tmp_path, "RAYPIPE_HOME": tmp_path / "home"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("RAYPIPE_STORE", raising=False)
    (tmp_path / "home").mkdir()
    lines(tmp_path / "faq.jsonl", ASKED)
    lines(tmp_path / "docs.jsonl", [DOCUMENT])
    return tmp_path


def tree(folder):
    """What lies there, and when it was written: a file that comes and goes changes its folder."""
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in (folder, *folder.rglob("*"))}


def ended(capsys, words, **places):
    """Exit code and stderr of a command, its words with places in them."""
    code = main([str(word).format(**places) for word in words])
    return code, capsys.readouterr().err


def mend(store):
    return f"nothing to search in {store}: `raypipe ingest DIR --format files --store {store}`"


QUESTIONS_ALONE = {
    "plan": ["plan", FAKES],
    "eval": ["eval", FAKES],
    "dry run": ["eval", FAKES, "--dry-run"],
    "repeats": ["eval", FAKES, "--repeats", 2],
    "oracle": ["eval", FAKES, "--oracle", "passages"],
    "changes": ["eval", FAKES, "--changes"],
    "sweep": ["sweep", FAKES, "--set", "extract.threshold=.4,.6"],
    "dry sweep": ["sweep", FAKES, "--set", "extract.threshold=.4,.6", "--dry-run"],
}


@pytest.mark.parametrize("words", QUESTIONS_ALONE.values(), ids=QUESTIONS_ALONE)
def test_questions_without_pages_are_refused_where_nothing_is_stored_and_no_store_is_made(
    place, capsys, words
):
    before, store = tree(place), place / "home/stores/default"
    code, err = ended(capsys, [*words, "--data", place / "faq.jsonl"])
    assert code == 3 and mend(store) in err
    assert tree(place) == before


STORED = [
    ["plan"],
    ["eval"],
    ["eval", "--until", "answer"],
    ["eval", "--until", "index"],
    ["eval", "--changes"],
    ["rank", "--out", "{place}/r.trec"],
    ["ask", "who?"],
    ["sweep", "--set", "extract.threshold=.4,.6"],
]


@pytest.mark.slow
@pytest.mark.parametrize("words", STORED, ids=" ".join)
def test_stored_questions_without_pages_are_refused_where_nothing_else_is_stored(place, capsys, words):
    store = place / "store"
    assert main(["ingest", str(place / "faq.jsonl"), "--store", str(store)]) == 0
    before, command = tree(place), [words[0], FAKES, *words[1:], "--store", store]
    code, err = ended(capsys, command, place=place)
    assert code == 3 and mend(store) in err
    assert tree(place) == before


@pytest.mark.slow
def test_a_recipe_that_reads_no_documents_has_nothing_to_search_among_them(place, capsys):
    store = place / "store"
    assert main(["ingest", str(place / "docs.jsonl"), str(place / "faq.jsonl"), "--store", str(store)]) == 0
    assert ended(capsys, ["plan", FAKES, "--store", store])[0] == 0, "its store has a document"
    code, err = ended(capsys, ["plan", "crag-baseline", *MODELS, "--store", store])
    assert code == 3 and "crag-baseline reads only sources of kind page" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["plan", FAKES, "--data", "{world}"],  # questions with pages of their own
        ["plan", "vanilla", *MODELS, "--data", "{place}/faq.jsonl"],  # a model that needs no passage
        ["plan", "local-kg", "--graph", "{world}/kg", "--data", "{place}/faq.jsonl"],  # a graph may answer
        ["plan", FAKES, "--data", "{place}/faq.jsonl", "{place}/docs.jsonl"],
    ],
    ids=["own pages", "no passages", "a graph", "documents next to them"],
)
def test_what_can_be_answered_is_planned_and_no_store_is_made(place, world, capsys, words):
    before = tree(place)
    code, err = ended(capsys, words, world=world, place=place)
    assert code == 0, err
    assert tree(place) == before


@pytest.mark.slow
def test_a_search_over_no_passage_finds_none(place, world):
    bench = Bench(place, world)
    assert main(["ingest", str(place / "faq.jsonl"), "--store", str(place / "store")]) == 0
    pipe = bench.pipeline()
    questions = list(stored_questions(pipe.store))
    pipe.index(questions)
    done = pipe.answer(questions)
    assert [q.outcome for q in pipe.answers(questions)] == ["abstained"] * 2, done


@pytest.fixture(scope="module")
def server():
    with serving({"reader": lambda messages: "ready"}) as server:
        yield server


DRY = {
    "plan": ["plan", FAKES, "--data", "{world}"],
    "sweep": ["sweep", FAKES, "--set", "extract.threshold=.4,.6", "--data", "{world}", "--dry-run"],
    "labels": ["labels", "db3-task1-700", *MODELS, "--judge", "words", "--data", "{world}", "--dry-run"],
    "questions": ["questions", "{place}/docs.jsonl", "--llm", "{server}", "--out", "{place}/q", "--dry-run"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [pytest.param(w, id=n, marks=[pytest.mark.drill] if n == "labels" else []) for n, w in DRY.items()],
)
@pytest.mark.parametrize("there", [False, True], ids=["no store", "a store"])
def test_a_plan_and_a_dry_run_write_nothing(place, ran, world, server, capsys, words, there):
    store = place / "home/stores/default"
    if there:
        assert main(["ingest", str(place / "faq.jsonl"), "--store", str(store)]) == 0
    before = tree(place)
    code, err = ended(capsys, words, world=world, place=place, server=f"{server.url}#reader")
    assert code == 0, err
    assert tree(place) == before


@pytest.mark.ray
@pytest.mark.parametrize("data", [["--data", "{world}"], []], ids=["data", "the demo"])
def test_a_dry_eval_writes_nothing(place, world, local_ray, capsys, data):
    before = tree(place)
    code, err = ended(capsys, ["eval", FAKES, *data, "--dry-run"], world=world)
    assert code == 0, err
    assert tree(place) == before


@pytest.mark.slow
def test_an_endpoint_says_which_store_it_searches_and_what_that_lacks(place, ran, capsys):
    endpoint, settings = ServeArgs(recipe=str(FAKES)), from_environment()
    default = place / "home/stores/default"
    assert endpoint.about_store(settings).startswith(mend(default))
    assert not default.exists()
    assert main(["ingest", str(place / "docs.jsonl")]) == 0
    assert "`raypipe eval RECIPE --until index --store" in endpoint.about_store(settings)
    full = replace(endpoint, store=str(ran.folder / "store"))
    sources = Store.open(full.store).count("sources")
    assert full.about_store(settings) == f"searching {full.store}: {sources} sources"
    key = "a-key-of-acme-with-16-chars"
    for fields, says in (
        ("where: hots = 'a.example'", "filters.acme: where: expected a field that documents here have: "),
        ("hosts: [none.example]", "filters.acme: no source meets it"),
    ):
        (place / "keys.yaml").write_text(f"filters:\n  acme: {{keys: [{key}], {fields}}}\n")
        found = replace(full, key_filters=str(place / "keys.yaml")).about_store(settings).splitlines()
        assert len(found) == 2 and says in found[1] and key not in found[1]
