"""docs/recipes: each page's commands run in order as they stand, in an empty folder; and those that
`raypipe reproduce` lists of what papers state.

/data, the servers of models and of the graph, and the hub are ones of this test. Models compute from words.
On QASPER's page MiniLM, which is installed, is real: a recipe is fitted to it. A download leaves small files
under its names. Clusters with GPUs have the laptop's cores.
"""

import json
import re
import shutil

import publicdata
import pytest
import yaml
from chat_server import serving
from checkout import ROOT, SUPPORT
from model_hub import serving_hub
from pages import commands, indented, page, ran, script, words
from small_data import crag, oag, qasper

from raypipe.api.cli.main import parser
from raypipe.api.reproduce import reproductions
from raypipe.contrib.crag.api.graphs import serve_graph
from raypipe.core.llm import JsonSchema, Message, Sampling
from raypipe.models.fake import echo

ELSEWHERE = "raypipe reproduce scifact --check"  # nine minutes on real data: tests/api/test_reproduce.py
REAL = {"all-MiniLM-L6-v2", "minilm-maxsim"}
PAGES = sorted(p.stem for p in ROOT.glob("docs/recipes/*.md"))
ENGINE = [pytest.mark.engine, pytest.mark.timeout(900)]
"""Marks of the page that has an engine on stand-in weights."""


def listed(name):
    """The commands of a page, in order: of marked blocks, then of indented ones."""
    text = page(f"docs/recipes/{name}.md")
    blocks = (b for b in (script(text), *indented(text)) if b.startswith("raypipe "))
    return [c.text for b in blocks for c in commands(b) if not c.text.startswith(ELSEWHERE)]


def replied(request, body):
    """What the model server says: what the fake model says to this chat."""
    form = body.get("response_format")
    constraint = form and JsonSchema(json.dumps(form["json_schema"]["schema"]))
    chat = tuple(Message(**m) for m in body["messages"])
    request.reply(echo(chat, Sampling(body["max_tokens"], constraint=constraint), None))


def downloaded(what, *rest, world):
    """Leaves the files of `raypipe download`, with little in them."""
    qasper(rest[0]) if what == "qasper" else crag(world, rest[-1], rest[rest.index("--task") + 1])


@pytest.fixture
def typed(world, tmp_path, monkeypatch, capsys, local_ray, request):
    """Runs a command, in a folder with nothing in it; gives what it prints. An eval scores each answer."""
    fakes = yaml.safe_load((SUPPORT / "fake_models.yaml").read_text())
    real = REAL if "qasper" in request.node.name else ()
    for folder in ("data", "empty", "conf"):
        (tmp_path / folder).mkdir()
    (tmp_path / "conf/models.yaml").write_text(
        yaml.safe_dump({name: entry for name, entry in fakes.items() if name not in real})
    )
    (tmp_path / "conf/clusters").mkdir()
    for cluster in ROOT.glob("conf/clusters/*-gpu*.yaml"):
        shutil.copy(ROOT / "conf/clusters/laptop.yaml", tmp_path / "conf/clusters" / cluster.name)
    oag(tmp_path / "data", 960, 48)
    predicted = {"question_id": "t0-0", "predicted_answer": "corpus t0", "predicted_evidence": []}
    (tmp_path / "data/anyones.jsonl").write_text(json.dumps(predicted))
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("RAYPIPE_CONF", str(tmp_path / "conf"))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    with serving(replied) as llm, serve_graph(world / "kg") as graph, serving_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        places = {
            " /data/": f" {tmp_path}/data/",
            "=/data/": f"={tmp_path}/data/",
            "https://llm.example.org/v1": llm.url,
            "http://127.0.0.1:8000": graph,
        }

        def run(command):
            for stands, here in places.items():
                command = command.replace(stands, here)
            program, name, *rest = words(command)
            assert program == "raypipe"
            if name == "download":
                return downloaded(*rest, world=world)
            printed = ran([name, *rest], capsys)
            assert name != "eval" or not re.search("(not|nothing was) scored", printed), printed
            return printed

        yield run


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_s_commands_can_be_typed(name):
    for command in listed(name):
        parser().parse_args(words(command)[1:])


@pytest.mark.ray
@pytest.mark.drill
@pytest.mark.parametrize("name", [pytest.param(p, marks=ENGINE if p == "index" else ()) for p in PAGES])
def test_a_page_s_commands_run_as_they_stand(name, typed):
    for command in listed(name):
        print(typed(command))


PUBLISHED = {p.recipe: p.command for p in reproductions().published}
STANDS = {  # what a command leaves to its reader -> what this test has there
    r"(\w+)=FILE": r"\1=/data/public/\1.parquet",
    r"(eval (?:db3-task[12]).* --data) DIR": r"\1 /data/crag",
    r"(eval (?:db3-task3|weknow).* --data) DIR": r"\1 /data/task3",
    r"(eval onewo.* --data) DIR": r"\1 /data/oag",
    r"--data qasper": "--data /data/qasper/qasper",
    r"=POOL": "=/data/qasper/train.jsonl",
    r"http://HOST:8000": "http://127.0.0.1:8000",
    r"--judge MODEL": "--judge llama-3-8b",
    r"URL#": "https://llm.example.org/v1#",
}


@pytest.mark.ray
@pytest.mark.drill
@pytest.mark.parametrize("recipe", PUBLISHED)
def test_a_command_for_what_a_paper_states_runs(recipe, typed, tmp_path):
    typed("raypipe download crag --task 1 /data/crag")
    typed("raypipe download crag --task 3 /data/task3")
    typed("raypipe download qasper /data/qasper")
    typed("raypipe examples /data/qasper/qasper-train-v0.3.json --out /data/qasper/train.jsonl")
    (tmp_path / "data/public").mkdir()
    publicdata.tables(tmp_path / "data/public")
    command = PUBLISHED[recipe]
    for stands, here in STANDS.items():
        command = re.sub(stands, here, command)
    print(typed(command))
