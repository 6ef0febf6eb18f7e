"""docs/recipes: each page's commands run in order as they stand, in an empty folder.

/data, the servers of models and of the graph, and the hub are ones of this test. Models compute from words,
but for MiniLM, which is installed: recipes are fitted to it. A download leaves small files under its names.
"""

import json

import pytest
import yaml
from chat_server import serving
from checkout import ROOT, SUPPORT
from model_hub import serving_hub
from pages import commands, indented, page, ran, script, words
from small_data import crag, oag, qasper

from raypipe.contrib.crag.api.graphs import serve_graph
from raypipe.core.llm import JsonSchema, Message, Sampling
from raypipe.models.fake import echo

pytestmark = [pytest.mark.ray, pytest.mark.slow]

REAL = {"all-MiniLM-L6-v2", "minilm-maxsim"}
ENGINE = "docs/recipes/index.md"  # it runs vLLM on stand-in weights
PAGES = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/recipes/*.md"))


def listed(name):
    """The commands of a page, in order: of marked blocks, then of indented ones."""
    blocks = [script(page(name)), *indented(page(name))]
    return [c.text for b in blocks if b.startswith("raypipe ") for c in commands(b)]


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
def typed(world, tmp_path, monkeypatch, capsys, local_ray):
    """Runs a command, in a folder with nothing in it; gives what it prints."""
    fakes = yaml.safe_load((SUPPORT / "fake_models.yaml").read_text())
    for folder in ("data", "empty", "conf"):
        (tmp_path / folder).mkdir()
    (tmp_path / "conf/models.yaml").write_text(
        yaml.safe_dump({name: entry for name, entry in fakes.items() if name not in REAL})
    )
    oag(tmp_path / "data", 600, 48)
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
            return downloaded(*rest, world=world) if name == "download" else ran([name, *rest], capsys)

        yield run


@pytest.mark.parametrize("name", PAGES)
def test_a_page_s_commands_run_as_they_stand(name, typed):
    for command in listed(name):
        print(typed(command))
