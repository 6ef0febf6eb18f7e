"""`rag` over a folder of documents behind HTTP, and a run on Ray whose models are all behind an address."""

import json
import os
import subprocess
import sys

import httpx
import numpy as np
import pytest
from chat_server import serving
from checkout import ROOT, SUPPORT
from endpoint import AUTH, started, until

from raypipe.contrib.world.write import write
from raypipe.models.fake import HashEmbedder, OverlapReranker

FAKES = str(SUPPORT / "fake_models.yaml")
pytestmark = [pytest.mark.drill, pytest.mark.ray, pytest.mark.timeout(900)]

QUESTION = "where are repairs of the Falcon X2 done?"
TEXTS = {
    "manual/falcon.html": "<title>Falcon X2</title><p>The Falcon X2 flies for 31 minutes.</p>"
    "<h2>Repairs</h2><p>Repairs of the Falcon X2 are done in Rotterdam.</p>",
    "contact.md": "# Contact\n\nThe office of support is in Utrecht.\n",
}


class Models:
    """A server of an embedder, a reranker and a language model, which compute from words alone."""

    def __init__(self, said="Repairs are done in Rotterdam."):
        self.said, self.paths = said, []

    def __call__(self, request, body):
        self.paths.append(request.path)
        if request.path == "/v1/embeddings":
            rows = HashEmbedder(48).embed(body["input"], "passage").tolist()
            request.send(json.dumps({"data": [{"index": i, "embedding": v} for i, v in enumerate(rows)]}))
        elif request.path == "/v1/rerank":
            found = OverlapReranker().score([(body["query"], d) for d in body["documents"]]).tolist()
            order = np.argsort(found)[::-1].tolist()
            results = [{"index": i, "relevance_score": found[i]} for i in order]
            request.send(json.dumps({"results": results}))
        else:
            request.reply(self.said)


@pytest.mark.parametrize("llm", [False, True], ids=["without a language model", "with one"])
def test_serve_answers_from_a_folder_and_names_file_and_section(tmp_path, llm):
    for name, text in TEXTS.items():
        file = tmp_path / "docs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    with serving(Models()) as server:
        words = ["rag", "--docs", str(tmp_path / "docs"), *(["--llm", f"{server.url}#m"] if llm else [])]
        with (
            started(words, tmp_path / "serve.log") as (url, _),
            httpx.Client(base_url=url, timeout=90, headers=AUTH) as client,
        ):
            slow = {"deadline_s": 90}  # the first question loads the models
            said = client.post("/v1/answer", json={"query": QUESTION, "include": ["replies"], **slow}).json()
            other = client.post("/v1/answer", json={"query": "how long is the warranty?", **slow}).json()
    assert said["degraded"] == other["degraded"] == []
    assert said["outcome"] == "answered" and "Rotterdam" in said["answer"]
    cited = said["citations"][0]
    assert cited["quote"].endswith("Repairs of the Falcon X2 are done in Rotterdam.")
    assert (cited["url"], cited["title"], cited["section"]) == ("manual/falcon.html", "Falcon X2", "Repairs")
    assert said["replies"]["llm"]["label"] == ("answered" if llm else "skipped")
    assert llm or other["outcome"] == "abstained"


def test_serve_follows_its_folder_and_never_quotes_a_file_that_was_removed(tmp_path):
    docs, log = tmp_path / "docs", tmp_path / "serve.log"
    docs.mkdir()
    for n in range(20):
        (docs / f"other{n}.md").write_text(f"# Other {n}\n\nThe office of number {n} is in Utrecht.\n")
    (docs / "falcon.md").write_text("Repairs of the Falcon X2 are done in Rotterdam.\n")
    (docs / "old.md").write_text("Long ago, repairs of the Falcon X2 were done in Breda.\n")
    with (
        started(["rag", "--docs", str(docs), "--models", FAKES], log) as (url, _),
        httpx.Client(base_url=url, timeout=90, headers=AUTH) as client,
    ):

        def ranked():
            body = {"query": QUESTION, "deadline_s": 90}
            return {p["url"]: p["text"] for p in client.post("/v1/retrieve", json=body).json()["passages"]}

        assert {"falcon.md", "old.md"} <= ranked().keys()
        before = log.read_text()
        (docs / "falcon.md").write_text("Repairs of the Falcon X2 are done in Delft now.\n")
        (docs / "old.md").unlink()
        (docs / "new.md").write_text("Repairs of the Falcon X2 take three days.\n")
        until(lambda: "old.md" not in ranked(), 60)
        until(lambda: "new.md" in ranked(), 60)
        found = ranked()
        assert "Delft" in found["falcon.md"] and "old.md" not in found
        said = log.read_text().removeprefix(before)
        assert "1 new, 1 changed, 1 removed" in said
        assert "embedded 2/2 passages in" in said, "nothing else is computed again"
        (docs / "falcon.md").unlink()
        until(lambda: "falcon.md" not in ranked(), 60)


RECIPE = """
about: a ranking by two models and an answer by a third
corpus:
  - parse: {kinds: [page, snippet]}
  - split: {child_chars: 700, child_overlap: 100}
  - embed: {model: all-MiniLM-L6-v2}
question:
  - dense: {model: all-MiniLM-L6-v2, top: 20}
  - fuse: {weights: {dense: 1.0}, missing: zero, top: 20}
  - rerank: {model: bge-reranker-v2-m3, top: 10}
  - generate: {model: llama-3-8b, prompt: rag/answer, into: llm, passages: 5, max_tokens: 32}
  - decide: {prefer: [llm]}
"""
FAR = """
all-MiniLM-L6-v2: {kind: embedder, loader: embeddings, endpoint: here, model: org/m, dim: 48}
bge-reranker-v2-m3: {kind: reranker, loader: rerank, endpoint: here, model: org/r, dialect: jina}
"""


def test_models_behind_addresses_take_the_place_of_all_others_on_ray(tmp_path):
    write(tmp_path / "world", 6, pages=6, seed=9, page_chars=1200)
    line, *_ = (tmp_path / "world/questions.jsonl").read_text().splitlines()
    question = json.loads(line)["query"]
    (tmp_path / "own.yaml").write_text(RECIPE)
    (tmp_path / "far.yaml").write_text(FAR)
    env = {**os.environ, "RAYPIPE_HOME": str(tmp_path / "home"), "RAYPIPE_CONF": str(ROOT / "conf")}

    def run(*words):
        command = [sys.executable, "-m", "raypipe", *words, "--store", str(tmp_path / "store"), "--json"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def live(*words):
        said = run("ask", "live", question, *words)
        return said["versions"]["release"], said["answer"], said["hits"]

    backend = Models("The answer of the server.")
    with serving(backend) as server:
        server.lists = json.dumps({"data": [{"id": "m"}]})
        cluster = (ROOT / "conf/clusters/laptop.yaml").read_text()
        (tmp_path / "mine.yaml").write_text(f'{cluster}\nendpoints:\n  here: {{url: "{server.url}"}}\n')
        far = ["--models", "far.yaml", "--cluster", "mine.yaml", "--llm", f"{server.url}#m"]
        run("eval", "own.yaml", "--data", "world", "--models", FAKES, "--out", "one")
        run("promote", "one")
        before = live()
        planned = {s["step"]: s for s in run("plan", "own.yaml", "--data", "world", *far)["steps"]}
        assert not backend.paths, "neither live answers nor a plan ask the server"
        assert planned["embed"]["max_calls"] > 0 and planned["parse"]["max_calls"] == 0
        done = run("eval", "own.yaml", "--data", "world", *far, "--out", "two")
        assert {"/v1/embeddings", "/v1/rerank", "/v1/chat/completions"} <= set(backend.paths)
        for step in done["steps"]:
            assert step["computed"] <= planned[step["step"]]["max_calls"], step
        workers = json.loads((tmp_path / "two/run.json").read_text())["rows_by_worker"]
        assert workers and str(os.getpid()) not in str(workers)
        assert live() == before
        run("promote", "two")
        asked = len(backend.paths)
        after = live("--cluster", "mine.yaml", "--llm", f"{server.url}#m")
        assert after[0] != before[0] and after[1] == backend.said
        assert len(backend.paths) > asked
