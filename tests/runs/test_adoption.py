"""A model that counts as another, and answers that are kept: what is asked, said and undone."""

import asyncio
from dataclasses import replace

import pytest
from reruns import CONF, FAKES, MODELS

from raypipe.api.compare import compare
from raypipe.api.models import adopt_model, end_adoption
from raypipe.api.plans import plan
from raypipe.api.release import promote
from raypipe.api.session import Session, from_environment
from raypipe.core.digests import model_identity, own_identity
from raypipe.core.errors import ConfError
from raypipe.core.llm import Generated, Message, Sampling
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.report.console import _notes
from raypipe.evaluation.result_table import read_table
from raypipe.runs.adoption import NotTheSame, adoptions, compared, keep
from raypipe.runs.explain import why
from raypipe.runs.gates import GateFailed
from raypipe.runs.record import read, recent
from raypipe.store import Store

pytestmark = pytest.mark.slow

NEW = FAKES.replace("hash-embedder", "far-embedder").replace("overlap-reranker", "far-reranker")
"""The recipe with models that compute the same numbers under other identities."""
ENTRIES = """
far-embedder: {kind: embedder, loader: hash, dim: DIM, max_tokens: 400}
far-reranker: {kind: reranker, loader: overlap, max_tokens: 400}
other: {kind: embedder, loader: "turned_words:open_model", dim: DIM}
"""
DIM = Session(replace(from_environment(), conf=CONF)).catalog().entries["hash-embedder"].dim


TURNED = """
from raypipe.models.fake import HashEmbedder

class Turned(HashEmbedder):
    def embed(self, texts, role):
        return super().embed([text[: len(text) // 2][::-1] for text in texts], role)

def open_model(model, device):
    return Turned(model.dim)
"""


@pytest.fixture
def two(bench, monkeypatch):
    """The bench with those models, and a session over its store."""
    (bench.folder / "turned_words.py").write_text(TURNED)
    monkeypatch.syspath_prepend(bench.folder)
    bench = replace(bench, models=MODELS + ENTRIES.replace("DIM", str(DIM)))
    bench.pipeline()
    return bench, Session(replace(from_environment(), conf=CONF), str(bench.folder / "models.yaml"))


def pipeline(bench, session, text):
    """The recipe over the store, with the models that this adopted."""
    pipe = bench.pipeline(text)
    over = session.over(str(bench.folder / "store"))
    return replace(pipe, recipe=replace(over.recipe(str(bench.folder / "fakes.yaml")), file=bench.file))


def asked(bench, session, text):
    """Calls that a plan names."""
    bench.pipeline(text)
    found = plan(str(bench.folder / "fakes.yaml"), store=str(bench.folder / "store"), session=session)
    return sum(s.max_calls for s in found.plan.steps), found.plan


def test_an_adopted_model_is_asked_nothing_that_the_other_answered_and_undone_the_plan_is_what_it_was(two):
    bench, session = two
    store = Store.open(str(bench.folder / "store"))
    before = asked(bench, session, NEW)
    assert before[0] > 100 and before[1].adopted == ()
    for new, old in (("far-embedder", "hash-embedder"), ("far-reranker", "overlap-reranker")):
        found = adopt_model(new, old, store, session=session)
        assert "100 requests" in found.checked and "100.0% of" in found.checked
    calls, planned = asked(bench, session, NEW)
    assert (
        calls == 0
        and len(planned.adopted) == 2
        and "far-embedder counts as hash-embedder" in planned.adopted[0]
    )
    counts, _ = bench.run(pipe=pipeline(bench, session, NEW), out="adopted")
    assert not any(computed for _, computed in counts.values())
    record = read(bench.folder / "adopted")
    assert record.digest == recent(store, 2)[1].digest and len([m for m in record.models if m.adopted]) == 2
    story = why(store, record, bench.lines()[0]["interaction_id"])
    assert story.state == "reused" and story.adopted == planned.adopted
    assert set(planned.adopted) <= set(_notes(record))
    with pytest.raises(ConfError, match="far-embedder itself is adopted as hash-embedder"):
        adopt_model("other", "far-embedder", store, session=session)
    adopted = session.catalog().model("far-embedder")
    keep(store, replace(adopted, max_tokens=200), adoptions(store)[own_identity(adopted)].adoption)
    assert len(adoptions(store)) == 3, "the entry of this name was changed, and adopted again"
    for name in ("far-embedder", "far-reranker"):
        assert end_adoption(name, store).counts_as == ""
    calls, planned = asked(bench, session, NEW)
    assert adoptions(store) == {} and calls == before[0]
    said = [line for d in planned.changed for line in d.lines]
    assert "embed.model.adopted_as was hash-embedder, is not set" in said
    assert len([d for d in planned.changed if d.lines]) == len(planned.changed)
    with pytest.raises(ConfError, match="no model 'far-embedder' is adopted"):
        end_adoption("far-embedder", store)


def test_a_model_that_answers_otherwise_is_refused_unless_the_user_insists(two):
    bench, session = two
    store = Store.open(str(bench.folder / "store"))
    with pytest.raises(NotTheSame, match=r"least cosine -?0\.\d+.* add --anyway"):
        adopt_model("other", "hash-embedder", store, session=session)
    assert adoptions(store) == {}
    found = adopt_model("other", "hash-embedder", store, anyway=True, session=session)
    assert "adopted anyway" in found.checked
    assert [record.adoption.checked for record in adoptions(store).values()] == [found.checked]
    with pytest.raises(ConfError, match="expected kind embedder"):
        adopt_model("far-reranker", "hash-embedder", store, session=session)
    with pytest.raises(ConfError, match=r"--as 'nobody': expected a model that a finished run"):
        adopt_model("far-reranker", "nobody", store, session=session)


def test_an_adopted_model_has_the_identity_of_the_other_and_an_engine_its_own(two):
    bench, session = two
    adopt_model("far-embedder", "hash-embedder", Store.open(str(bench.folder / "store")), session=session)
    old = session.catalog().model("hash-embedder")
    new = session.over(str(bench.folder / "store")).catalog().model("far-embedder")
    assert model_identity(new) == model_identity(old) != own_identity(new)
    assert new.original == old and new.max_tokens == 400


class Kit:
    """A kit with one generator."""

    def __init__(self, replies):
        self._replies = replies

    def generator(self, model):
        async def generate(chats, sampling, adapter=None):
            return [Generated(self._replies[chat[0].content], "stop", 1, 0, 1) for chat in chats]

        return generate


def test_replies_are_compared_letter_by_letter(two):
    _, session = two
    model = replace(session.catalog().model("hash-embedder"), kind="generator")
    chats = {
        (Sampling(5), None, (Message("user", str(n)),)): Generated("yes", "stop", 1, 0, 1) for n in range(4)
    }
    kit = Kit({"0": "yes", "1": "yes", "2": "Yes", "3": "yes"})
    found = asyncio.run(compared(kit, model, "run", chats))
    assert (found.requests, found.agreement, found.passes) == (4, 0.75, False)


MORE = 3


@pytest.fixture
def grown(two):
    """The bench with more questions than its run answered."""
    bench, _ = two
    lines = bench.lines()
    more = [{**line, "interaction_id": f"more{n}"} for n, line in enumerate(lines[:MORE])]
    return bench, bench.data([*lines, *more]), len(lines)


OTHER = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n").replace("top: 10}", "top: 9}")


def test_only_new_answers_what_no_run_answered_and_marks_the_rest(grown, two):
    bench, data, old = grown
    store = Store.open(str(bench.folder / "store"))
    [first] = recent(store, 1)
    how = EvalOptions("crag", rule="official", only_new=True)
    done = evaluate(bench.pipeline(OTHER), [data], bench.folder / "grown", how)
    assert done.record.kept == {first.run: old} and done.record.questions == old + MORE
    answered = {s.step: s.rows for s in done.record.steps}
    assert answered["extract"] == answered["decide"] == MORE
    table = read_table(bench.folder / "grown" / "results.parquet", ["id", "kept", "answer"]).to_pylist()
    assert {r["kept"] for r in table if not r["id"].startswith("more")} == {first.run}
    assert [r["kept"] for r in table if r["id"].startswith("more")] == [None] * MORE
    assert f"{old} of {old + MORE} answers are kept" in " ".join(_notes(done.record))
    again = evaluate(bench.pipeline(OTHER), [data], bench.folder / "again", how)
    assert again.record.kept == {first.run: old} and again.reused == MORE
    _, planned = asked(bench, two[1], OTHER)
    reasons = {why for s in planned.steps if s.half == "question" for why in s.reasons}
    assert reasons == {"kept"}, "no question is new to that run"
    row = bench.lines()[0]["interaction_id"]
    story = why(store, done.record, row)
    assert (story.state, story.kept, story.recipe) == ("kept", first.run, first.digest)
    assert why(store, done.record, "more0").state == "computed"
    evaluate(bench.pipeline(OTHER), [data], bench.folder / "whole", replace(how, only_new=False))
    [found] = compare(bench.folder / "whole", bench.folder / "grown").comparisons
    assert 0 < found.score.n <= MORE and found.kept
    assert not any(id.startswith("more") for id in found.kept)
    with pytest.raises(GateFailed, match=f"{old} of {old + MORE} answers .* were kept"):
        promote(bench.folder / "grown", ["score>=-1"])
    with pytest.raises(ConfError, match="--only-new: expected without --fresh"):
        evaluate(bench.pipeline(), [data], bench.folder / "no", replace(how, fresh=True))
    other = bench.pipeline(OTHER.replace("child_chars: 200", "child_chars: 180"))
    none = evaluate(other, [bench.data(bench.lines())], bench.folder / "none", how)
    assert [*none.record.kept.values()] == [old] and not any(s.computed for s in none.record.steps)
