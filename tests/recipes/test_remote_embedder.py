"""An embedder exchanged for one behind an address: planned, evaluated, promoted; live answers wait for it."""

import asyncio
import json

import numpy as np
import pytest
from chat_server import serving
from checkout import ROOT
from collection_bench import papers, queries, write_beir
from reruns import FAKES, MODELS, Bench

from raypipe.api.data import ingest
from raypipe.api.indexes import open_docs
from raypipe.api.pipelines import in_process
from raypipe.api.served_models import FAR, distance, require_unchanged
from raypipe.api.session import Session, from_environment
from raypipe.contrib.world.write import write
from raypipe.core import arrow
from raypipe.core.errors import ConfError, Unavailable
from raypipe.evaluation.ann import recalls
from raypipe.models.fake import HashEmbedder
from raypipe.models.hosts import EndpointAddress
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import QuestionExecutor
from raypipe.runs.record import read
from raypipe.runs.release import live, promote
from raypipe.store import Store
from raypipe.store.housekeeping import tables
from raypipe.store.index import LanceIndex

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5", "threshold: 0.0")
FAR_AWAY = "far: {kind: embedder, loader: embeddings, endpoint: e, model: org/m, dim: 48%s}\n"


class Vectors:
    """A server of hashed vectors; `salt` makes it another model, `lacks` vectors are left out. It may refuse
    every text."""

    def __init__(self, dim=48):
        self.dim, self.salt, self.texts, self.lacks, self.refuses = dim, "", [], 0, False

    def __call__(self, request, body):
        self.texts += body["input"]
        if self.refuses:
            return request.send("no embeddings here", 400)
        found = HashEmbedder(self.dim).embed([t + self.salt for t in body["input"]], "passage")
        rows = [{"index": i, "embedding": v} for i, v in enumerate(found.tolist())]
        request.send(json.dumps({"data": rows[self.lacks :]}))


@pytest.fixture
def server():
    backend = Vectors()
    with serving(backend) as found:
        yield found, backend


def ask(store, questions, endpoints):
    release = live(store)
    recipe, spec = release.opened(store)
    kit = LocalKit(LanceIndex(spec), "transformers", endpoints=endpoints)
    answered = asyncio.run(QuestionExecutor(recipe, kit)(questions))
    return release.id, [(q.answer, q.hits) for q in answered]


@pytest.mark.drill
def test_live_answers_stay_until_a_run_with_the_remote_embedder_is_promoted(tmp_path, server):
    found, backend = server
    write(tmp_path / "world", 6, pages=6, seed=9, page_chars=1200)
    endpoints = {"e": EndpointAddress(found.url)}
    models = MODELS + FAR_AWAY % ""
    bench = Bench(tmp_path, tmp_path / "world", models=models, endpoints=endpoints)
    bench.run(SURE, out="one")
    store = Store.open(str(tmp_path / "store"))
    questions = arrow.question.records(store.dataset("questions").to_table())
    first = promote(store, read(tmp_path / "one"), [])
    _, old = ask(store, questions, endpoints)
    assert not backend.texts, "the first recipe asks no server"

    remote = SURE.replace("hash-embedder", "far")
    ran, _ = bench.run(remote, out="two")  # holds the run to its plan
    assert ran["embed"][1] > 0 and ran["parse"] == (0, 0), "texts stay, vectors are new"
    assert ask(store, questions, endpoints) == (first.id, old)
    second = promote(store, read(tmp_path / "two"), [])
    id, new = ask(store, questions, endpoints)
    assert id == second.id and new != old
    sent = len(backend.texts)
    again, _ = bench.run(remote, out="three")
    assert len(backend.texts) == sent and all(asked == 0 for _, asked in again.values())


def models_of(tmp_path, found, **more):
    extra = "".join(f", {k}: {v}" for k, v in more.items())
    bench = Bench(tmp_path, tmp_path, models=MODELS + FAR_AWAY % extra)
    recipe = bench.pipeline(SURE.replace("hash-embedder", "far")).recipe
    return recipe.models(), {"e": EndpointAddress(found.url, tries=1)}


def test_a_server_that_changes_its_answers_is_caught_before_work(tmp_path, server):
    found, backend = server
    models, endpoints = models_of(tmp_path, found)
    store = Store.open(str(tmp_path / "store"))
    require_unchanged(store, models, endpoints)
    require_unchanged(store, models, endpoints)
    backend.salt = " exchanged"
    with pytest.raises(ConfError, match=r"gives other vectors .* give its entry a `revision`"):
        require_unchanged(store, models, endpoints)
    renamed, _ = models_of(tmp_path, found, revision="second")
    require_unchanged(store, renamed, endpoints)
    require_unchanged(None, models, endpoints)


def test_another_dim_or_count_and_a_server_that_is_down_are_said_before_work(tmp_path, server):
    found, backend = server
    models, endpoints = models_of(tmp_path, found)
    backend.lacks = 1
    with pytest.raises(ConfError, match="expected 3 vectors"):
        require_unchanged(Store.open(str(tmp_path / "store")), models, endpoints)
    backend.lacks, backend.dim = 0, 32
    with pytest.raises(ConfError, match="expected vectors of dim 48, as its entry says, found 32"):
        require_unchanged(Store.open(str(tmp_path / "store")), models, endpoints)
    backend.refuses = True
    with pytest.raises(ConfError, match=r"status 400: .no embeddings here.*Correct the model's entry"):
        require_unchanged(None, models, endpoints)
    down = {"e": EndpointAddress("http://127.0.0.1:9/v1", tries=1)}
    with pytest.raises(Unavailable, match="ConnectError"):
        require_unchanged(None, models, down)


DENSE = """about: dense
corpus:
  - parse: {html: lxml, via: fast, kinds: [page, snippet, document]}
  - split: {child_chars: 200, child_overlap: 20}
  - embed: {model: far}
question:
  - dense: {model: far, top: 5, ann: {index: ivf_rq, probes: 2, refine: 4, min_recall: 0.0}}
  - fuse: {method: weighted, weights: {dense: 1.0}, missing: zero, top: 5, into: final}
"""


@pytest.fixture
def session(tmp_path, server):
    """A session whose cluster file has the server, and a recipe that embeds there, at dense.yaml."""
    (tmp_path / "dense.yaml").write_text(DENSE)
    (tmp_path / "models.yaml").write_text(FAR_AWAY % "")
    laptop = (ROOT / "conf/clusters/laptop.yaml").read_text()
    (tmp_path / "cluster.yaml").write_text(f"{laptop}\nendpoints:\n  e: {{url: {server[0].url}, tries: 1}}\n")
    where = {"RAYPIPE_CONF": str(ROOT / "conf"), "RAYPIPE_HOME": str(tmp_path / "home")}
    cluster, models = (str(tmp_path / name) for name in ("cluster.yaml", "models.yaml"))
    return Session(from_environment(where), models=models, cluster=cluster)


def test_the_cluster_files_servers_embed_a_folder_in_this_process_and_are_checked_before(
    session, tmp_path, server
):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.txt").write_text("Repairs are done in Delft.")
    recipe, backend = str(tmp_path / "dense.yaml"), server[1]
    store = open_docs(recipe, tmp_path / "docs", session=session)
    [table] = [t for t in tables(store) if t.startswith("vectors-")]
    assert store.count(table) == 1 and "Repairs are done in Delft." in backend.texts
    (tmp_path / "docs/b.txt").write_text("Another model embeds this.")
    backend.salt = " exchanged"
    with pytest.raises(ConfError, match="gives other vectors"):
        open_docs(recipe, tmp_path / "docs", session=session)
    assert store.count(table) == 1


def test_recall_is_measured_with_an_embedder_behind_an_address(session, tmp_path):
    write_beir(tmp_path / "beir", papers(1, 60), queries(6))
    store = ingest([tmp_path / "beir"], format="beir", store=tmp_path / "s", session=session).store
    recipe = session.recipe(str(tmp_path / "dense.yaml"))
    with in_process(session, Store.open(store), recipe) as pipeline:
        pipeline.index(None)
        [recall] = recalls(pipeline)
    assert recall.questions == 6


def test_rounding_is_no_other_model_and_a_turned_vector_is():
    rows = HashEmbedder(48).embed(["a film of 1994", "a harbour"], "query")
    halved = rows.astype(np.float16).astype(np.float32)
    assert distance(rows, halved) < FAR / 10
    assert distance(rows, rows[::-1].copy()) > FAR
    assert distance(rows, rows[:1]) == float("inf")
    assert distance(np.array([0.2]), np.array([0.3])) > FAR
