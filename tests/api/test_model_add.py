"""`raypipe models add`: an entry from a hub at a pinned commit, from a folder, or from a server."""

import json
import re
import shlex

import pytest
import yaml
from chat_server import serving
from model_hub import COMMIT, EMBEDDER, serving_hub
from outputs import OUTPUTS
from pydantic import TypeAdapter
from reruns import CONF

from raypipe.api.cli.main import main
from raypipe.api.models import add_model
from raypipe.api.session import Session, from_environment, load_recipe
from raypipe.core.errors import ConfError, ModelMissing, Unavailable
from raypipe.models import catalog


@pytest.fixture
def hub(monkeypatch):
    with serving_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def session(tmp_path):
    return lambda: Session(from_environment(), str(tmp_path / "models.yaml"))


def test_a_language_model_is_added_with_its_commit_licence_gate_size_and_memory(hub, tmp_path, capsys):
    file = tmp_path / "models.yaml"
    args = ["models", "add", "org/Chat-8B", "--models", str(file)]
    assert main([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    TypeAdapter(OUTPUTS["models"]).validate_python(found)
    assert found["entry"] == {
        "kind": "generator",
        "loader": "vllm",
        "repo": "org/Chat-8B",
        "revision": COMMIT,
        "dtype": "bfloat16",
        "max_model_len": 32768,
    }
    assert (found["licence"], found["gated"]) == ("llama3", True)
    assert found["memory_gib"] == pytest.approx(2 * 8.03e9 / 2**30, rel=1e-3) and found["context_gib"] == 4.0
    assert found["bytes"] > 16e9 and f"--revision {COMMIT}" in found["get"]
    model = catalog.read(yaml.safe_load(file.read_text()), file, hub=tmp_path).model("chat-8b")
    assert model.weights == f"org/Chat-8B@{COMMIT}"
    assert not any("safetensors" in path for path in hub.paths), "weights are not downloaded"
    assert main([*args, "--name", "again"]) == 0
    out = capsys.readouterr().out
    assert "gated: accept it" in out and COMMIT in out and "4.00 GiB for one reply of 32,768 tokens" in out
    assert list(yaml.safe_load(file.read_text())) == ["chat-8b", "again"]


def test_an_embedder_and_a_cross_encoder_are_read_from_their_files(hub, session):
    embedder = add_model("org/embedder", session=session()).entry
    assert (embedder["loader"], embedder["dim"], embedder["max_tokens"]) == (
        "sentence-transformers",
        384,
        256,
    )
    assert "pooling" not in embedder
    bge = add_model("BAAI/bge-small", session=session()).entry
    assert (bge["loader"], bge["pooling"]) == ("flagembedding", "cls")
    cross = add_model("org/cross", session=session()).entry
    assert (cross["kind"], cross["loader"], cross["max_tokens"]) == ("reranker", "cross-encoder", 512)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("org/pickled", ModelMissing, r"only pickles \(pytorch_model.bin\).*raypipe.models.convert"),
        ("org/code", ConfError, "auto_map"),
        ("org/modules", ConfError, "custom_st.Transformer"),
        ("org/classifier", ConfError, "this one has 2: a classifier"),
        ("org/vague", ConfError, "Give --kind"),
        ("org/absent", ConfError, "no such model"),
        ("org/closed", ModelMissing, "HF_TOKEN"),
        ("notaname", ConfError, "expected ORG/NAME"),
        ("./nowhere", ModelMissing, "expected a model's folder"),
    ],
)
def test_what_cannot_be_loaded_is_refused_and_nothing_is_written(
    hub, session, tmp_path, source, error, message
):
    with pytest.raises(error, match=message):
        add_model(source, session=session())
    assert not (tmp_path / "models.yaml").exists()


def test_a_hub_that_cannot_be_reached_says_what_to_do(hub, session, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"cannot be reached: nothing answers there.*give a folder"):
        add_model("org/embedder", session=session())


def test_a_name_that_is_taken_stays_as_it_is(hub, session, tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text("# mine\nembedder: {kind: embedder, loader: hash, dim: 8}")
    with pytest.raises(ConfError, match="there already"):
        add_model("org/embedder", session=session())
    add_model("org/embedder", name="second", revision="main", session=session())
    text = file.read_text()
    assert text.startswith("# mine\nembedder: {kind") and list(yaml.safe_load(text)) == ["embedder", "second"]


def test_what_a_refused_recipe_says_to_type_pins_its_models(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYPIPE_CONF", str(CONF.folders[0]))
    assert main(["models", "onewo-submitted", "--json"]) == 0
    listed = [n["get"] for n in json.loads(capsys.readouterr().out)["models"]]
    models, typed = None, []
    while len(typed) < 2:
        with pytest.raises(ConfError, match=r"Then pass `--models models\.yaml`") as refused:
            load_recipe("onewo-submitted", models, CONF)
        typed.append(re.search(r"with `(raypipe [^`]+)`", str(refused.value))[1])
        assert main(shlex.split(typed[-1])[1:]) == 0
        models = "models.yaml"
    assert set(typed) <= set(listed)
    found = {m.name: m.weights for m in load_recipe("onewo-submitted", models, CONF).models()}
    for name in ("paraphrase-MiniLM-L12-v2", "qwen1.5-14b-chat-gptq"):
        assert found[name].endswith(f"@{COMMIT}")


def test_a_folder_is_added_by_its_path(session, tmp_path):
    here = tmp_path / "own"
    for name, content in {**EMBEDDER, "model.safetensors": None}.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(json.dumps(content))
    found = add_model(str(here), session=session())
    assert (found.name, found.entry["path"], found.get) == ("own", str(here), "")


def served(request, body):
    if request.path.endswith("/embeddings"):
        request.send(json.dumps({"data": [{"index": 0, "embedding": [0.1] * 24}]}))
    elif request.path.endswith("/rerank"):
        rows = [{"index": i, "relevance_score": 0.5} for i in range(len(body["documents"]))]
        request.send(json.dumps({"results": rows}))
    else:
        request.send("no such model", 404)


def test_a_served_model_is_asked_what_it_is(session, tmp_path):
    with serving(served) as server:
        server.lists = json.dumps({"data": [{"id": "org/m", "owned_by": "vllm", "max_model_len": 4096}]})
        chat = add_model(f"{server.url}#org/m", name="chat", session=session())
        far = add_model(f"{server.url}#org/e", kind="embedder", session=session())
        ranker = add_model(f"{server.url}#org/r", kind="reranker", dialect="jina", session=session())
        with pytest.raises(ConfError, match="--dialect: a reranker needs one of"):
            add_model(f"{server.url}#org/r2", kind="reranker", session=session())
        with pytest.raises(ConfError, match="did you mean 'org/m'"):
            add_model(f"{server.url}#org/n", session=session())
    assert (chat.entry["dialect"], chat.entry["max_model_len"]) == ("vllm", 4096)
    assert list(chat.endpoints.values()) == [{"url": server.url}]
    assert chat.entry["endpoint"] in chat.endpoints
    assert far.entry["dim"] == 24 and ranker.entry["loader"] == "rerank"
    file = tmp_path / "models.yaml"
    assert list(catalog.read(yaml.safe_load(file.read_text()), file, hub=tmp_path).entries) == [
        "chat",
        "e",
        "r",
    ]
