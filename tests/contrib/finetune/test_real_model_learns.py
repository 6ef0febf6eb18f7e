"""Labels and 60 steps of LoRA teach a real small model what it could not do, by raypipe's own commands.

Two tasks: to abstain where the text that it is shown does not say the answer (every question has a text, so
that it is learnt from text), and to write calls of the graph. Scored on invented questions of another world.
"""

import json
import os
import subprocess
import sys

import pytest
import yaml
from checkout import ROOT
from real_model import real_model

from raypipe.contrib.world.write import write

pytestmark = [pytest.mark.ray, pytest.mark.engine, pytest.mark.drill, pytest.mark.timeout(3000)]
TRAIN, HELD = {"questions": 320, "seed": 5}, {"questions": 160, "seed": 6}
STEPS = ("steps=60", "lr=1e-3", "max_seq_len=512", "evaluate_every=30", "save_every=30")
ANSWERING = """
corpus:
  - parse: {kinds: [document]}
  - split: {child_chars: 700}
  - embed: {model: hash-embedder}
question:
  - dense: {model: hash-embedder, top: 1}
  - fuse: {weights: {dense: 1.0}, top: 1}
  - generate:
      model: small
      prompt:
        variables: [context, text]
        system: Answer from the text in a few words. If it does not say the answer, say "i don't know".
        user: "{{ context }}\\n{{ text }}"
      into: llm
      passages: 1
      layout: list
      max_tokens: 32
  - decide: {prefer: [llm]}
"""
CALLING = """
corpus: [{parse: {kinds: [page]}}, {tokenize: {words: stems}}, {split: {child_chars: 200}}]
question:
  - generate:
      model: small
      prompt: {variables: [text], system: Write the calls that answer the question., user: "{{ text }}"}
      reply: calls
      grammar: calls
      into: calls
      max_tokens: 64
  - kg_query: {graph: world, calls: calls, into: facts}
  - decide: {prefer: [facts]}
"""


def lines(folder):
    return [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]


def with_texts(world):
    """Questions with one text each: of every second, a text about something else of its domain."""
    told = {}
    for q in lines(world):
        gold, snippets = q["answer"], [s["page_snippet"] for s in q["search_results"]]
        text = next((s for s in snippets if gold in s.lower()), "")
        if text and not q["premise_false"]:
            told.setdefault(q["domain"], []).append((q["interaction_id"], q["query"], gold, text))
    for asked in told.values():
        for i, (id, query, gold, text) in enumerate(asked):
            other = next(t for *_, t in asked[i + 1 :] + asked[:i] if gold not in t.lower())
            kind = "unanswerable" if i % 2 else "answerable"
            shown = other if i % 2 else text
            yield {"id": id, "query": query, "answer": gold, "documents": [shown], "domain": kind}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two worlds, the model's entry, and both recipes."""
    folder = tmp_path_factory.mktemp("learns")
    entry = {"kind": "generator", "loader": "vllm", "path": real_model().path, "dtype": "bfloat16"}
    (folder / "models.yaml").write_text(yaml.safe_dump({"small": {**entry, "max_model_len": 1024}}))
    for name, world in (("train", TRAIN), ("held", HELD)):
        write(folder / name, world["questions"], pages=2, seed=world["seed"], page_chars=1000)
        texts = "".join(json.dumps(row) + "\n" for row in with_texts(folder / name))
        (folder / f"{name}.jsonl").write_text(texts)
    for name, recipe in (("answering", ANSWERING), ("calling", CALLING)):
        (folder / f"{name}.yaml").write_text(recipe)
    return folder


def raypipe(place, *words, models="models.yaml"):
    """Returns the object that a command prints with --json."""
    env = {**os.environ, "RAY_ADDRESS": "local", "RAYPIPE_HOME": str(place / "home")}
    env |= {"RAYPIPE_CONF": str(ROOT / "conf"), "PYTHONPATH": str(ROOT / "src")}
    given = ["--models", models, "--store", "store"] if words[0] in ("labels", "finetune", "eval") else []
    command = [sys.executable, "-m", "raypipe", *words, *given, "--json"]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def trained(place, recipe, step, labels, scored, measure):
    """Trains an adapter on labels; evaluates the base and the adapter on `scored`, and compares them by a
    measure."""
    sets = [word for field in STEPS for word in ("--set", field)]
    tuned = place / f"tuned-{step}"
    raypipe(
        place,
        "finetune",
        "tiny",
        "--labels",
        labels,
        "--base",
        "small",
        "--name",
        step,
        "--out",
        str(tuned),
        *sets,
    )
    data = ("--data", *scored, "--kind", "crag", "--rule", "words")
    raypipe(place, "eval", recipe, *data, "--out", f"base-{step}")
    raypipe(
        place,
        "eval",
        recipe,
        *data,
        "--out",
        f"adapted-{step}",
        "--set",
        f"generate:{step}.adapter={step}",
        models=str(tuned / "models.yaml"),
    )
    made = raypipe(place, "compare", f"base-{step}", f"adapted-{step}", "--measure", measure)
    return made["comparisons"][0]


def shares(place, run):
    """Kind of question -> right, missing or hallucination -> share."""
    import pyarrow.parquet as pq

    rows = pq.read_table(place / run / "results.parquet").to_pylist()
    kinds = {}
    for row in rows:
        right = row["verdict"] in ("exact", "correct")
        kinds.setdefault(dict(row["labels"])["domain"], []).append("right" if right else row["verdict"])
    verdicts = ("right", "missing", "hallucination")
    return {kind: {v: found.count(v) / len(found) for v in verdicts} for kind, found in kinds.items()}


def test_a_model_learns_from_labels_to_abstain_where_its_text_does_not_say_the_answer(place):
    asked = ("--data", "train.jsonl", "--against", "held.jsonl", "--judge", "words")
    made = raypipe(place, "labels", "answering.yaml", *asked, "--out", "labels")
    assert made["labels"] > 100
    found = trained(place, "answering.yaml", "llm", "labels", ("held.jsonl",), "score")
    base, adapted = shares(place, "base-llm"), shares(place, "adapted-llm")
    print(json.dumps({"mix": made["mix"], "compared": found, "base": base, "adapted": adapted}))
    assert found["verdict"] == "better" and found["p"] < 0.05
    assert adapted["unanswerable"]["missing"] > base["unanswerable"]["missing"] + 0.3
    assert adapted["answerable"]["right"] > 0.3, "abstaining alone is no success"


def test_a_model_learns_from_labels_to_write_calls_that_parse_and_run(place):
    asked = [q for q in lines(place / "train") if q["kg_program"]]
    imported = ({"id": q["interaction_id"], "label": q["kg_program"], "use": True} for q in asked)
    (place / "calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in imported))
    graph = ("--graph", f"world={place / 'train/kg'}")
    raypipe(
        place,
        "labels",
        "calling.yaml",
        "--step",
        "calls",
        "--data",
        "train",
        "--import",
        "calls.jsonl",
        "--out",
        "labels-calls",
        *graph,
    )
    held = ("held", "--graph", f"world={place / 'held/kg'}")
    # Facts of a wrong call are a wrong answer, and the untaught model hardly writes one that runs: right
    # answers are compared.
    found = trained(place, "calling.yaml", "calls", "labels-calls", held, "accuracy")
    rates = {}
    for run in ("base-calls", "adapted-calls"):
        words = (
            "kg",
            "score",
            "--gold",
            "held",
            "--predictions",
            run,
            "--reply",
            "calls",
            "--graph",
            "held/kg",
        )
        rates[run] = {m["measure"]: m["rate"] for m in raypipe(place, *words)["measures"]}
    print(json.dumps({"compared": found, "rates": rates}))
    assert found["verdict"] == "better" and found["p"] < 0.05
    base, adapted = rates["base-calls"], rates["adapted-calls"]
    assert adapted["parsed"] > 0.9 > 0.5 > base["parsed"]
    assert adapted["result"] > base["result"] + 0.1
