"""Only what is new is asked, whatever changed: counted at the models themselves, and held to the plan.

A recipe with two branches and a gate, on models that compute, runs on one store again and again. Each run's
calls are counted where a model is called; they are what the report says, never more than the plan named, the
same number where it said exact, and no model ever gets an equal request twice.
"""

import asyncio
import shutil
from collections import Counter
from dataclasses import dataclass, fields, replace

import pytest
from reruns import SIZES, Bench, TaskSizes, WorkerKit

from raypipe.core import arrow
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.runs.pipeline.tasks import WorkerConfig, Workers, inline
from raypipe.steps.rerank import Rerank

pytestmark = pytest.mark.slow

BRANCHES = """
corpus:
  - parse: {html: lxml, via: fast, kinds: [page, snippet]}
  - tokenize: {words: stems}
  - split: {child_chars: 200, child_overlap: 50, parent_chars: 700, parent_overlap: 150}
  - embed: {model: hash-embedder}
question:
  - generate:
      model: scripted
      prompt: {variables: [text], system: Sort it., user: "{{ text }}"}
      into: kind
      reply: label
      labels: [what, which, who, how, when]
      default: other
      choices: [what, which, who, how, when]
      max_tokens: 4
  - generate:
      model: scripted
      prompt: {variables: [text], system: From memory., user: "Answer this.\\nQuestion: {{ text }}"}
      into: closed
      max_tokens: 20
  - dense: {model: hash-embedder, top: 30, when: {kind: [what, which, who]}}
  - bm25: {words: stems, variant: okapi, top: 30, when: {kind: [what, which, who]}}
  - fuse: {weights: {dense: 1.0, bm25: 1.0}, missing: min, top: 20}
  - rerank: {model: overlap-reranker, candidates: 20, top: 10}
  - generate:
      model: scripted
      prompt:
        variables: [context, text]
        system: From pages.
        user: "{{ context }}\\nQuestion: {{ text }}"
      into: web
      passages: 3
      context_chars: 2000
      max_tokens: 30
      when: {kind: [what, which, who]}
  - decide: {prefer: [web, closed]}
"""
CORPUS = ("parse", "tokenize", "split", "embed")
RANKING = ("dense", "rerank")
STEPS = (*CORPUS, "generate:kind", "generate:closed", *RANKING, "generate:web")


class Counting(WorkerKit):
    """A kit that writes down every request that reaches a model."""

    def __init__(self, kit, calls):
        super().__init__(kit)
        self._calls = calls

    def embedder(self, model):
        async def embed(texts, role):
            self._calls += [("embed", model.name, role, t) for t in texts]
            return await self._kit.embedder(model)(texts, role)

        return embed

    def reranker(self, model):
        async def score(pairs):
            self._calls += [("score", model.name, *pair) for pair in pairs]
            return await self._kit.reranker(model)(pairs)

        return score

    def generator(self, model):
        async def generate(chats, sampling, adapter=None):
            self._calls += [("generate", model.name, chat, sampling, adapter) for chat in chats]
            return await self._kit.generator(model)(chats, sampling, adapter)

        return generate


@dataclass(frozen=True)
class Counted(WorkerConfig):
    """A place whose models are counted."""

    calls: list = None

    def kit(self, index):
        return Counting(WorkerConfig.kit(self, index), self.calls)


class Reruns(Bench):
    """A store on which every call is counted for as long as it lives."""

    def __init__(self, folder, world, calls=()):
        super().__init__(folder, world)
        self.calls = list(calls)

    def pipeline(self, text=BRANCHES, sizes=SIZES, runner=inline):
        pipe = super().pipeline(text, sizes, runner)
        place = pipe.worker
        return replace(
            pipe, worker=Counted(place.store, place.backend, place.device, place.threads, calls=self.calls)
        )

    def run(self, text=BRANCHES, data=None, pipe=None, out="out"):
        """Step -> calls asked, step -> plan; after holding counters, report, plan and memo to one another."""
        before = len(self.calls)
        counts, plans = super().run(data=data, pipe=pipe or self.pipeline(text), out=out)
        models = {s: asked for s, (_, asked) in counts.items() if s not in ("parse", "tokenize", "split")}
        assert sum(models.values()) == len(self.calls) - before, "the report says what the models were asked"
        twice = [c for c, n in Counter(self.calls).items() if n > 1]
        assert not twice, f"{len(twice)} requests were asked again, such as {twice[0]}"
        return {s: asked for s, (_, asked) in counts.items()}, plans

    def answers(self, text=BRANCHES):
        """Question id -> answer, hits, order and replies, as stored for this recipe."""
        pipe = self.pipeline(text)
        questions = arrow.question.records(pipe.store.dataset("questions").to_table())
        return {q.id: q for q in pipe.answers(questions)}


@pytest.fixture(scope="module")
def base(world, tmp_path_factory):
    reruns = Reruns(tmp_path_factory.mktemp("base"), world)
    reruns.first = reruns.run()
    return reruns


@pytest.fixture
def bench(base, tmp_path):
    shutil.copytree(base.folder / "store", tmp_path / "store")
    return Reruns(tmp_path, base.world, base.calls)


def changed(*pairs):
    text = BRANCHES
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def only(asked, *steps):
    """Nothing but these steps asked anything, and each of these did."""
    assert {s for s, n in asked.items() if n} == set(steps), asked


GATE = "when: {kind: [what, which, who]}"


def test_the_first_run_asks_of_every_step_and_its_gate_keeps_some_questions_out(base):
    asked, plans = base.first
    only(asked, *STEPS)
    assert asked["generate:kind"] == asked["generate:closed"] == plans["generate:kind"].max_calls == 6
    assert plans["generate:kind"].exact and not plans["generate:web"].exact
    assert 0 < asked["generate:web"] < 6, "the gate must let some in and keep some out"


def test_nothing_changed_asks_nothing(bench):
    asked, plans = bench.run()
    only(asked)
    assert all(p.exact and p.max_calls == 0 for p in plans.values())


def test_another_reranker_asks_its_scores_and_the_replies_whose_prompt_changed(bench):
    before, text = bench.answers(), changed(("rerank: {model: overlap", "rerank: {model: other"))
    asked, plans = bench.run(text)
    assert {s for s, n in asked.items() if n} <= {"rerank", "generate:web"} and asked["rerank"] > 0
    after = bench.answers(text)
    moved = sum(before[q].order[:3] != after[q].order[:3] for q in before)
    assert asked["generate:web"] <= moved, "a reply is asked for where the passages that are shown moved"
    assert set(plans["rerank"].reasons) == {"model"}


def test_a_reranking_that_shows_the_same_passages_asks_for_no_reply(bench):
    only(bench.run(changed(("candidates: 20, top: 10", "candidates: 20, top: 5")))[0])


def test_another_embedder_parses_nothing(bench):
    asked, plans = bench.run(changed(("hash-embedder", "other-embedder")))
    assert not any(asked[s] for s in ("parse", "tokenize", "split", "generate:kind", "generate:closed"))
    assert plans["embed"].exact and asked["embed"] == plans["embed"].max_calls > 0


@pytest.mark.drill
def test_an_old_store_and_a_new_model_give_a_fresh_runs_answers_for_the_new_models_calls(bench, tmp_path):
    """Capability 40: only calls whose model or input changed are made, and the answers are new ones."""
    text, old = changed(("hash-embedder", "other-embedder"), ("top: 30,", "top: 6,")), set(bench.calls)
    before = bench.answers()
    bench.run(text)
    made = set(bench.calls) - old
    named = {c for c in made if c[1] == "other-embedder"}
    assert named and {c[0] for c in named} == {"embed"}
    fresh = Reruns(tmp_path / "fresh", bench.world)
    fresh.folder.mkdir()
    fresh.run(text)
    assert made == set(fresh.calls) - old, "what a fresh run asks too, and the old one had not"
    after = bench.answers(text)
    assert after == fresh.answers(text)
    assert any(before[q].answer != after[q].answer or before[q].hits != after[q].hits for q in before)


def test_another_split_embeds_only_new_texts(bench):
    old = {c for c in bench.calls if c[0] == "embed" and c[2] == "passage"}
    asked, _ = bench.run(changed(("child_chars: 200", "child_chars: 190")))
    new = {c for c in bench.calls if c[0] == "embed" and c[2] == "passage"} - old
    assert 0 < asked["embed"] == len(new), "every text that was asked is new, as the counters hold"
    assert not asked["parse"] and not asked["dense"] and asked["split"] > 0


def test_an_edited_prompt_asks_that_generates_replies_alone(bench):
    asked, plans = bench.run(changed(("From memory.", "Answer from memory.")))
    only(asked, "generate:closed")
    assert asked["generate:closed"] == 6 and plans["generate:closed"].exact
    assert plans["generate:closed"].reasons == {"prompt": 6}
    asked, plans = bench.run(
        changed(("From memory.", "Answer from memory."), ("From pages.", "From the pages."))
    )
    only(asked, "generate:web")
    assert set(plans["generate:web"].reasons) == {"prompt"}


def test_one_branch_changed_leaves_the_other_untouched(bench):
    asked, _ = bench.run(
        changed(("rerank: {model: overlap", "rerank: {model: other"), ("top: 30,", "top: 9,"))
    )
    assert not asked["generate:closed"] and not asked["generate:kind"] and asked["rerank"]
    asked, _ = bench.run(changed(("into: closed\n      max_tokens: 20", "into: closed\n      max_tokens: 9")))
    only(asked, "generate:closed")


def test_an_edited_page_costs_that_page_and_the_questions_that_cite_it(bench):
    lines = bench.lines()
    old = lines[0]["search_results"][0]["page_result"]
    citing = set()
    for line in lines:
        for result in line["search_results"]:
            if result["page_result"] == old:
                result["page_result"] = old + "<p>One more sentence stands here now.</p>"
                citing.add(line["query"])
    before = len(bench.calls)
    asked, _ = bench.run(data=bench.data(lines))
    assert asked["parse"] == asked["split"] == 1 and not asked["generate:kind"] and not asked["dense"]
    scored = {c[2] for c in bench.calls[before:] if c[0] == "score"}
    assert scored <= citing, "only questions that cite the page were scored again"


def test_one_question_more_is_one_question_more(bench):
    lines = bench.lines()
    more = {**lines[0], "interaction_id": "more", "query": "what owl sleeps on mount brenn?"}
    asked, plans = bench.run(data=bench.data([*lines, more]))
    assert asked["generate:kind"] == asked["generate:closed"] == asked["dense"] == 1
    assert not any(asked[s] for s in CORPUS) and plans["rerank"].cached == 6


@pytest.mark.drill
def test_a_gate_that_flips_and_flips_back_asks_nothing_twice_and_answers_as_a_fresh_run(bench, tmp_path):
    flipped = changed((GATE, "when: {kind: [how, when, other]}"))
    asked, _ = bench.run(flipped)
    assert asked["generate:web"] and not asked["generate:kind"] and not asked["generate:closed"]
    only(bench.run()[0])
    both = changed((GATE, "when: {kind: [what, which, who, how, when, other]}"))
    only(bench.run(both)[0])
    fresh = Reruns(tmp_path / "fresh", bench.world)
    fresh.folder.mkdir()
    for text in (both, flipped, BRANCHES):
        fresh.run(text)
        assert fresh.answers(text) == bench.answers(text)


def test_a_step_whose_code_was_rewritten_asks_nothing(bench):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Again(Rerank):
        """Other code, the same class name, version and fields."""

    Again.__name__ = "Rerank"
    pipe = bench.pipeline()
    [old] = [s.step for s in pipe.recipe.question if s.name == "rerank"]
    new = Again(**{f.name: getattr(old, f.name) for f in fields(old)})
    question = tuple(replace(s, step=new) if s.step is old else s for s in pipe.recipe.question)
    only(bench.run(pipe=replace(pipe, recipe=replace(pipe.recipe, question=question)))[0])


def test_another_place_other_parts_and_more_workers_ask_nothing(bench):
    def backwards(verb, fill, parts):
        for part in reversed(parts):
            yield from inline(verb, fill, [part])  # each part in a worker of its own

    pipe = bench.pipeline(sizes=TaskSizes(3, 1), runner=backwards)
    place = replace(pipe.worker, backend="flagembedding", device="cuda", threads=7)
    only(bench.run(pipe=replace(pipe, worker=place, workers=lambda verb: Workers(9)))[0])
    asked, _ = bench.run(pipe=replace(pipe, recipe=bench.pipeline(changed(("top: 30,", "top: 9,"))).recipe))
    assert asked["rerank"] <= 120 and not asked["embed"], "what is left is done by many workers as by one"


def alternating(verb, work, tasks):
    """Hands tasks to two workers in turn, each with a memory of its own."""
    with asyncio.Runner() as loop:
        workers = [loop.run(work.open()), loop.run(work.open())]
        for i, task in enumerate(tasks):
            yield loop.run(workers[i % 2](task))


@pytest.mark.parametrize(
    ("sizes", "workers", "texts_in_two_tasks"),
    [
        pytest.param(TaskSizes(3, 3), 1, 0, id="whole tasks", marks=pytest.mark.drill),
        pytest.param(TaskSizes(3, 3), 2, 0, id="rows spread over workers", marks=pytest.mark.drill),
        pytest.param(TaskSizes(3, 2), 1, 5, id="more questions than a task may have"),
    ],
)
def test_two_workers_make_no_call_twice_for_a_question_unless_no_task_has_room_for_all_that_ask_it(
    world, tmp_path, sizes, workers, texts_in_two_tasks
):
    """docs/change.md: a text that N tasks ask makes each of its calls N times at most."""
    bench = Reruns(tmp_path, world)
    lines = bench.lines()[:5]  # no multiple of a task: each worker would get what it had
    names = ("", "-again", "-third")
    data = bench.data([{**x, "interaction_id": x["interaction_id"] + name} for name in names for x in lines])
    pipe = bench.pipeline(sizes=sizes, runner=alternating)
    pipe = replace(pipe, workers=lambda verb: Workers(workers))
    evaluate(pipe, [data], tmp_path / "out", EvalOptions("crag", rule="official"))
    assert len(bench.answers()) == 3 * len(lines) == 15
    made = Counter(call for call in bench.calls if call[0] != "embed" or call[2] == "query")
    twice = {call for call, n in made.items() if n > 1}
    assert max(made.values()) <= 2
    chats = {call for call in twice if call[0] == "generate"}
    assert len(chats) == sum(1 for call in made if call[0] == "generate") * texts_in_two_tasks // 5, twice
    assert bool(twice) == bool(texts_in_two_tasks)
