"""Labels by db3's rules: each path of the truth table, what is asked for it, and what a change asks again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import label_script
import pytest
from label_script import ASKED, KILL, NAMES, QUESTION, Killed
from reruns import CONF, MODELS, Bench

from raypipe.api.session import load_recipe
from raypipe.contrib.finetune.label_files import JudgedAnswer, read_review, write_review
from raypipe.contrib.finetune.labelling import CHECK, CONTEXT, labelling
from raypipe.contrib.finetune.training_labels import (
    examples_of,
    judged_answers,
    label_of,
    labels_from,
    mix_of,
    mixed,
    paths_of,
    require_kinds,
)
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import IDK, INVALID_QUESTION, SKIPPED_REPLY, Fault, Gold, Question, Reply
from raypipe.evaluation.evaluate import Evaluation, evaluate
from raypipe.evaluation.golds import golds_of, questions_of
from raypipe.evaluation.options import EvalOptions
from raypipe.recipes.resolve import prompt_file
from raypipe.runs import release
from raypipe.runs.pipeline.driver import TaskSizes
from raypipe.runs.plan.records import Plan
from raypipe.store import Store

pytestmark = pytest.mark.drill
RECIPE = """
about: answers in words from one page
corpus:
  - parse: {html: lxml, via: fast, kinds: [page]}
  - tokenize: {words: stems}
  - split: {child_chars: 200, child_overlap: 0}
question:
  - generate:
      model: teller
      prompt: {system: "Say where.", user: "{{ text }}", variables: [text]}
      into: domain
      reply: label
      labels: [movie]
      default: open
      max_tokens: 3
  - bm25: {words: stems, top: 6, when: {domain: [open]}}
  - fuse: {weights: {bm25: 1.0}, top: 4, when: {domain: [open]}}
  - generate:
      model: teller
      prompt: db3/p_basic
      fill: {words: 70}
      into: web
      context_chars: 300
      max_tokens: 75
      when: {domain: [open]}
  - decide: {prefer: [web]}
"""
MODEL = """
teller: {kind: generator, loader: "label_script:open_model", max_model_len: 8192}
"""
LABELS = {
    "Arle": ("1", INVALID_QUESTION),
    "Birk": ("3.1", "Tessa Blume"),
    "Celm": ("3.2.1", IDK),
    "Dorn": ("3.2.2", "Ivo Karr"),
    "Elst": ("3.2.1", IDK),
    "Falk": ("3.2.2", "Ivo Karr"),
    "Gade": ("3.2.1", IDK),
    "Hove": (None, ""),
    "Isen": (None, ""),
}
WHY = {"Hove": "no_judgement", "Isen": "no_context_judgement"}


def line(name: str, page: str = "") -> dict[str, Any]:
    text = page or f"<p>The lantern of {name} is old. {NAMES[name][1] or 'It shines.'}</p>"
    result = {
        "page_name": "",
        "page_url": f"https://example.org/{name}",
        "page_snippet": "",
        "page_last_modified": "",
        "page_result": text,
    }
    return {
        "interaction_id": name,
        "query": QUESTION.format(name),
        "query_time": "03/05/2024, 23:18:31 PT",
        "domain": "open" if name < "E" else "music",
        "answer": NAMES[name][0],
        "alt_ans": [],
        "search_results": [result],
    }


@dataclass
class Labelled:
    """What one run made, and what it asked."""

    done: Evaluation
    plan: Plan
    judged: list[JudgedAnswer]
    asked: list[tuple[str, str, Any]]  # name, what, chat

    def steps(self) -> dict[str, tuple[int | None, int]]:
        return {s.step: (s.planned, s.computed) for s in self.done.record.steps}


@dataclass
class Labeller:
    """A store, and how labels are made on it."""

    bench: Bench

    def run(self, text: str = RECIPE, context: str = "", out: str = "out", only: Any = None) -> Labelled:
        pipe = self.bench.pipeline(text, sizes=TaskSizes(50, 4))
        check, asks = prompt_file(CONF, CHECK), prompt_file(CONF, CONTEXT)
        if context:
            asks = replace(asks, user=asks.user + context)
        truths = {n: (NAMES[n][0],) for n in only or NAMES}
        made = labelling(pipe.recipe, "web", None, check, asks, truths)
        pipe, plans, before = replace(pipe, recipe=made.recipe), list[Plan](), len(ASKED)
        how = EvalOptions("crag", on_plan=plans.append, only=only)
        done = evaluate(pipe, [] if only else [self.bench.world], self.bench.folder / out, how)
        questions = list(questions_of(pipe, only, None))
        golds = golds_of(pipe.store, [q.id for q in questions], "answers")
        judged = list(judged_answers(pipe, questions, golds, made))
        return Labelled(done, plans[0], judged, ASKED[before:])


def labeller(folder: Path, names: Any = NAMES) -> Labeller:
    data = folder / "data.jsonl"
    data.write_text("\n".join(json.dumps(line(name)) for name in names))
    return Labeller(Bench(folder, data, models=MODELS + MODEL))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Labeller, Labelled]]:
    one = labeller(tmp_path_factory.mktemp("labels"))
    yield one, one.run()


@pytest.mark.slow
def test_each_path_of_the_rules_gives_its_label(made: tuple[Labeller, Labelled]) -> None:
    judged = made[1].judged
    assert {a.question.id: (a.rule, a.label) for a in judged} == LABELS
    assert {a.question.id: a.why for a in judged if a.why} == WHY
    paths = {(p.rule, p.why): p.questions for p in paths_of(judged, {})}
    assert paths == {
        ("1", ""): 1,
        ("3.1", ""): 1,
        ("3.2.1", ""): 3,
        ("3.2.2", ""): 2,
        ("", "no_judgement"): 1,
        ("", "no_context_judgement"): 1,
    }


@pytest.mark.slow
def test_only_what_a_rule_needs_is_asked(made: tuple[Labeller, Labelled]) -> None:
    asked = {(name, kind) for name, kind, chat in made[1].asked if "Say where" not in chat[0].content}
    answered = set(NAMES) - {"Arle"}
    assert {n for n, kind in asked if kind == "answer"} == answered
    assert {n for n, kind in asked if kind == "check"} == answered - {"Elst", "Falk"}
    assert {n for n, kind in asked if kind == "context"} == {"Celm", "Dorn", "Elst", "Falk", "Gade", "Isen"}
    assert len(made[1].asked) == len({chat for *_, chat in made[1].asked})


@pytest.mark.slow
def test_the_gate_on_a_reply_that_is_not_made_goes_and_golds_are_in_no_answering_chat(
    made: tuple[Labeller, Labelled],
) -> None:
    recipe = made[1].done.record.recipe
    assert [s["name"] for s in recipe["question"]] == [
        "bm25",
        "fuse",
        "truths",
        "generate:web",
        "generate:agrees",
        "generate:mentioned",
        "decide",
    ]
    for name, kind, chat in made[1].asked:
        text = " ".join(m.content for m in chat)
        assert (NAMES[name][0] in text) is (kind != "answer") or name == "Birk"


@pytest.mark.slow
def test_the_chat_of_a_label_is_the_one_that_was_sent(made: tuple[Labeller, Labelled]) -> None:
    sent = {name: chat for name, kind, chat in made[1].asked if kind == "answer"}
    chats = {a.question.id: a.chat for a in made[1].judged}
    assert {n: chats[n] for n in sent} == sent
    arle = chats["Arle"]  # never asked, and rendered alike
    assert [m.role for m in arle] == ["system", "user"] and QUESTION.format("Arle") in arle[1].content
    contexts = {n: c for n, kind, c in made[1].asked if kind == "context"}
    passage = "The lantern of Celm is old. Tessa Blume keeps it."
    assert passage in sent["Celm"][1].content and passage in contexts["Celm"][1].content


@pytest.mark.slow
def test_a_second_run_asks_nothing_and_a_changed_prompt_only_what_its_plan_said(
    made: tuple[Labeller, Labelled],
) -> None:
    again = made[0].run(out="again")
    assert not again.asked and [a.label for a in again.judged] == [a.label for a in made[1].judged]
    assert {n: c for n, c in again.steps().items() if c != (0, 0)} == {}
    changed = made[0].run(context="\nBe strict.", out="changed")
    assert {(name, kind) for name, kind, _ in changed.asked} == {
        (name, "context") for name in ("Celm", "Dorn", "Elst", "Falk", "Gade", "Isen")
    }
    planned = {s.step: s.max_calls for s in changed.plan.steps}
    broken = len(WHY)  # a reply that broke may not be cached: such a row is counted again
    assert planned["generate:web"] <= broken and planned["generate:agrees"] <= broken
    assert planned["generate:mentioned"] >= len(changed.asked) == changed.steps()["generate:mentioned"][1]
    assert {a.question.id: (a.rule, a.label) for a in changed.judged} == LABELS


@pytest.mark.slow
def test_a_run_with_golds_in_it_is_marked_and_cannot_be_promoted(made: tuple[Labeller, Labelled]) -> None:
    record = made[1].done.record
    assert record.oracle == "labels"
    assert "This run made labels" in (made[0].bench.folder / "out/report.html").read_text()
    with pytest.raises(ConfError, match="made training labels"):
        release.promote(Store.open(record.store), record, ())


@pytest.mark.slow
def test_a_run_that_is_killed_three_times_gives_the_same_labels_and_asks_nothing_twice(
    made: tuple[Labeller, Labelled], tmp_path: Path
) -> None:
    one, before, kills = labeller(tmp_path), len(ASKED), 0
    for calls in (3, 9, 14):
        KILL.append(before + calls)
        with pytest.raises(Killed):
            one.run()
        kills += 1
        KILL.clear()
    done = one.run()
    assert kills == 3 and done.done.record.resumed >= 0
    chats = [chat for *_, chat in ASKED[before:]]
    assert len(chats) == len(set(chats)) == len(made[1].asked)
    assert [(a.question.id, a.rule, a.label, a.chat) for a in done.judged] == [
        (a.question.id, a.rule, a.label, a.chat) for a in made[1].judged
    ]


@pytest.mark.slow
def test_words_judge_without_a_model(made: tuple[Labeller, Labelled], tmp_path: Path) -> None:
    bench, before = made[0].bench, len(ASKED)
    pipe = bench.pipeline(RECIPE)
    prompts = prompt_file(CONF, CHECK), prompt_file(CONF, CONTEXT)
    words = labelling(pipe.recipe, "web", "words", *prompts, {n: (NAMES[n][0],) for n in NAMES})
    pipe = replace(pipe, recipe=words.recipe)
    evaluate(pipe, [bench.world], tmp_path / "words", EvalOptions("crag"))
    questions = list(questions_of(pipe, None, None))
    golds = golds_of(pipe.store, [q.id for q in questions], "answers")
    found = {a.question.id: a.rule for a in judged_answers(pipe, questions, golds, words)}
    assert found == {"Arle": "1", "Birk": "3.1", **dict.fromkeys(set(NAMES) - {"Arle", "Birk"}, "3.2.1")}
    assert len(ASKED) == before, "its answers are the cached ones"


TASK3 = {
    "calls": ["generate:domain", "truths", "generate:calls", "kg_query:facts", "decide"],
    "kg": [
        "generate:domain",
        "generate:calls",
        "kg_query:facts",
        "truths",
        "generate:kg",
        "generate:agrees",
        "generate:mentioned",
        "decide",
    ],
    "web": [
        "shortlist",
        "dense",
        "fuse",
        "rerank",
        "truths",
        "generate:web",
        "generate:agrees",
        "generate:mentioned",
        "decide",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("step", TASK3)
def test_a_step_is_labelled_with_the_stages_that_it_needs(step: str) -> None:
    models = str(Path(label_script.__file__).parent / "fake_models.yaml")
    recipe = load_recipe("db3-task3-tuned", models, CONF)
    prompts = prompt_file(CONF, CHECK), prompt_file(CONF, CONTEXT)
    made = labelling(recipe, step, None, *prompts, {"q": ("x",)})
    assert [s.name for s in made.recipe.question] == TASK3[step]
    stage = next(s for s in made.recipe.question if s.name == f"generate:{step}")
    assert stage.step.adapter.values() == (None,)  # type: ignore[attr-defined]
    gates = {"calls": {}, "kg": {"facts", "truth"}, "web": {"truth"}}
    assert set(stage.when) == set(gates[step])


def test_a_row_whose_calls_cannot_be_read_keeps_its_chat_for_the_label_that_a_person_gives() -> None:
    models = str(Path(label_script.__file__).parent / "fake_models.yaml")
    prompts = prompt_file(CONF, CHECK), prompt_file(CONF, CONTEXT)
    made = labelling(load_recipe("db3-task3-tuned", models, CONF), "calls", None, *prompts, {})
    cut = Reply("get_", "fault", fault=Fault("generate", "unreadable", "cut", transient=False))
    decide = made.recipe.question[-1].step.open(None)  # type: ignore[arg-type]  # it asks nothing
    [row] = asyncio.run(decide([Question("q", "who?", replies={"calls": cut, "truth": SKIPPED_REPLY})]))
    assert row.outcome == "abstained"


GOLD = Gold("q", ("mira", "mira t."))
ANSWERED = Reply("by tom", "answered")


@pytest.mark.parametrize(
    ("gold", "truth", "web", "agrees", "mentioned", "expected"),
    [
        (None, "skipped", ANSWERED, "", "", (None, "", "no_truth")),
        (Gold("q", ()), "skipped", ANSWERED, "", "", (None, "", "no_truth")),
        (GOLD, "invalid", None, "", "", ("1", INVALID_QUESTION, None)),
        (GOLD, "answered", None, "", "", (None, "", "not_asked")),
        (GOLD, "answered", Reply("", "skipped"), "", "", (None, "", "not_asked")),
        (GOLD, "answered", Reply("", "fault"), "", "", (None, "", "no_reply")),
        (GOLD, "answered", ANSWERED, "true", "skipped", ("3.1", "mira", None)),
        (GOLD, "answered", ANSWERED, "false", "yes", ("3.2.2", "mira", None)),
        (GOLD, "answered", ANSWERED, "false", "no", ("3.2.1", IDK, None)),
        (GOLD, "answered", ANSWERED, "fault", "skipped", (None, "", "no_judgement")),
        (GOLD, "answered", ANSWERED, "false", "fault", (None, "", "no_context_judgement")),
        (GOLD, "answered", Reply(IDK, "abstained"), "skipped", "no", ("3.2.1", IDK, None)),
        (GOLD, "answered", Reply(IDK, "abstained"), "skipped", "yes", ("3.2.2", "mira", None)),
    ],
)
def test_the_truth_table(
    gold: Gold | None, truth: str, web: Reply | None, agrees: str, mentioned: str, expected: Any
) -> None:
    replies = {"truth": Reply("", truth)} | ({"web": web} if web else {})  # type: ignore[arg-type]
    replies |= {n: Reply("", x) for n, x in (("agrees", agrees), ("mentioned", mentioned)) if x}
    assert label_of(gold, replies, "web") == expected


@pytest.mark.slow
def test_splits_keep_near_duplicates_together_and_a_share_of_abstentions_is_reached(
    made: tuple[Labeller, Labelled],
) -> None:
    labels = labels_from(made[1].judged, {}, 0.4, None)
    assert {x.question_id for x in labels} == set(NAMES) - {"Hove", "Isen"}
    assert {x.split for x in labels} == {"train", "held-out"}
    assert labels_from(made[1].judged, {}, 0.4, None) == labels
    every = labels_from(made[1].judged, {}, 0.0, None)
    for share in (0.0, 0.2, 0.5):
        found = mixed(every, share)
        assert abs(sum(x.label == IDK for x in found) / len(found) - share) < 0.1
        assert mix_of(found)[-1].labels == len(found)
    assert {e.rule for e in examples_of(made[1].judged, every)} == {"1", "3.1", "3.2.1", "3.2.2"}
    with pytest.raises(DataError, match='of more than one kind, found 3, all "i don\'t know"'):
        require_kinds([x for x in every if x.label == IDK], True, made[1].judged)
    with pytest.raises(DataError, match="others, found 0 and"):
        mixed([x for x in every if x.label != IDK], 0.5)
    with pytest.raises(DataError, match="found none of 9 questions; 1: the judge gave no judgement"):
        require_kinds([replace(x, split="held-out") for x in every], True, made[1].judged)


@pytest.mark.slow
def test_what_a_person_marks_outranks_the_rules(made: tuple[Labeller, Labelled], tmp_path: Path) -> None:
    file = tmp_path / "review.jsonl"
    write_review(file, made[1].judged, "web")
    with pytest.raises(DataError, match='marked "use": true, found none'):
        read_review(file)
    lines = [json.loads(x) for x in file.read_text().splitlines()]
    assert [x["id"] for x in lines] == sorted(NAMES) and lines[2]["agrees"] == '{"Accuracy": "False"}'
    lines[7] |= {"label": "Ivo Karr", "use": True}
    file.write_text("\n".join(map(json.dumps, lines)))
    given = {id: label for id, (label, _) in read_review(file).items()}
    found = {x.question_id: x for x in labels_from(made[1].judged, given, 0.0, None)}
    assert found["Hove"].rule == "imported" and found["Hove"].label == "Ivo Karr"
    assert found["Birk"].rule == "3.1" and "Isen" not in found
    for odd, said in [({"label": " "}, "a label that says something"), ({"id": 3}, "an object with an id")]:
        file.write_text(json.dumps(lines[7] | odd))
        with pytest.raises(DataError, match=said):
            read_review(file)


@pytest.mark.parametrize(
    ("step", "change", "said"),
    [
        ("wed", ("", ""), "has no generate step of that reply; did you mean 'web'"),
        ("domain", ("", ""), "a step that answers or writes calls, found reply: label"),
        ("web", ("db3/p_basic", "qasper/answer-llm"), "its prompt shows no context"),
        ("web", ("into: domain", "into: truth"), "reply 'truth' has the name of one that labelling makes"),
        (None, ("model: teller", "model: optional-llm"), "asks no model, so there is nothing to label"),
    ],
)
def test_a_step_that_cannot_be_labelled_is_refused(
    tmp_path: Path, step: str | None, change: tuple[str, str], said: str
) -> None:
    text = RECIPE.replace(*change) if change[0] else RECIPE
    if "qasper" in change[1]:
        text = text.replace("      fill: {words: 70}\n", "").replace("      context_chars: 300\n", "")
    if change[1] == "into: truth":
        text = text.replace(
            "db3/p_basic", '{user: "{{ context }}{{ replies.truth }}", variables: [context, replies.truth]}'
        ).replace("      fill: {words: 70}\n", "")
        text = text.replace("{domain:", "{truth:")
    recipe = Bench(tmp_path, tmp_path, models=MODELS + MODEL).pipeline(text).recipe
    prompts = prompt_file(CONF, CHECK), prompt_file(CONF, CONTEXT)
    with pytest.raises(ConfError, match=said):
        labelling(recipe, step, None, *prompts, {})


def test_the_script_knows_every_question() -> None:
    assert set(LABELS) == set(label_script.NAMES)
