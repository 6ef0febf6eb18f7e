"""A small model learns when to say "i don't know": labels, adapter, scores on questions it has not seen.

    python bench/fine_tuning.py --work DIR [--base FOLDER] [--train 480] [--held-out 120] [--steps 400]

The base is a tiny Llama that reads lists (`list_reader`). Half of the questions ask for a name that is not
in their list, where it says some value, wrongly. The pipeline's own answers give the labels (right: the gold;
wrong, and the gold is not in the context: "i don't know"), and `finetune` makes the adapter. Then the base,
the adapter, and a recipe that always says "i don't know" answer held-out questions; then come `compare` and
`promote` with its gates. Prints a JSON line for each. Exits with 7 unless at least .8 of the unanswerable
questions are abstained, at least .5 of the answerable ones right, and both comparisons say better.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import list_reader
import pyarrow.parquet as pq
import yaml

from raypipe.core.llm import Message
from raypipe.core.records import digest
from raypipe.evaluation.label_files import Label, Split, write_labels

IDK = "i don't know"
ABSTAINED, RIGHT = (
    0.8,
    0.5,
)  # of unanswerable questions; of answerable ones: a model that abstains alone fails
RULE = '''"""Right is what equals the gold: nothing is left to a judge."""


def exact(prediction):
    said = (prediction.prediction or "").strip().lower()
    if said == "i don't know":
        return "missing"
    return "exact" if said in prediction.truths else "hallucination"
'''
PROMPT = {
    "variables": ["context", "text"],
    "system": list_reader.SYSTEM,
    "user": "{{ context }}{{ text }}",
}


def recipe(adapter: str | None, model: str) -> dict[str, Any]:
    """One passage, the whole list, and one call."""
    ask = {"model": model, "prompt": PROMPT, "into": "llm", "passages": 1, "max_tokens": 12}
    return {
        "about": "a list and a question",
        "corpus": [
            {"parse": {"kinds": ["document"]}},
            {"split": {"child_chars": 700}},
            {"embed": {"model": "hash-embedder"}},
        ],
        "question": [
            {"dense": {"model": "hash-embedder", "top": 1}},
            {"fuse": {"weights": {"dense": 1.0}, "top": 1}},
            {"generate": ask | ({"adapter": adapter} if adapter else {})},
            {"decide": {"prefer": ["llm"]}},
        ],
    }


def questions(count: int, seed: int) -> list[dict[str, Any]]:
    """Every second one asks for a name that its list does not have."""
    draw, made = random.Random(seed), []
    for i in range(count):
        (listed, other), (value, gold) = draw.sample(list_reader.NAMES, 2), draw.sample(list_reader.VALUES, 2)
        asked, gold = (listed, value) if i % 2 else (other, gold)
        made.append(
            {
                "id": f"{seed}-{i}", "query": list_reader.question(asked), "answer": gold,
                "documents": [list_reader.listed(listed, value)],
                "domain": "answerable" if i % 2 else "unanswerable",
            }
        )  # fmt: skip
    return made


def labels_of(run: Path, train: set[str], stop: set[str]) -> list[Label]:
    """The labels that the truth table of db3 gives, judged by equality: to train on, and to stop by."""
    made = []
    rows = pq.read_table(run / "results.parquet").to_pylist()
    for row in (row for row in rows if row["id"] in train | stop):
        reply = next(r for r in row["replies"] if r["prompt"])
        chat = tuple(Message(m["role"], m["content"]) for m in reply["prompt"])
        gold = row["golds"][0]
        right, relevant = row["verdict"] == "exact", f"={gold}\n" in chat[-1].content
        said, rule = (gold, "3.1") if right else (gold, "3.2.2") if relevant else (IDK, "3.2.1")
        split: Split = "held-out" if row["id"] in stop else "train"
        domain = dict(row["labels"])["domain"]
        made.append(Label(row["id"], chat, said, rule, domain, split, gold))  # type: ignore[arg-type]
    return made


def halves(run: Path) -> dict[str, dict[str, float]]:
    """Shares of right, abstained and wrong, of both kinds of questions."""
    found: dict[str, list[str]] = {"answerable": [], "unanswerable": []}
    for row in pq.read_table(run / "results.parquet").to_pylist():
        found[dict(row["labels"])["domain"]].append(row["verdict"])
    return {
        kind: {v: round(got.count(v) / len(got), 3) for v in ("exact", "missing", "hallucination")}
        for kind, got in found.items()
    }


def raypipe(*arguments: str | Path, work: Path) -> dict[str, Any]:
    """What a command prints with --json."""
    command = [sys.executable, "-m", "raypipe", *map(str, arguments), "--json"]
    done = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    """Prints a JSON line for each part; 7 where the adapter does not do what it should."""
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    made.add_argument("--work", type=Path, required=True, help="a folder for everything")
    made.add_argument("--base", type=Path, help="a base that was built before (default: built in the folder)")
    made.add_argument("--limit", type=float, default=120.0, help="seconds of the base's own training")
    made.add_argument("--train", type=int, default=480, help="questions to train on")
    made.add_argument("--held-out", type=int, default=120, help="questions to score")
    made.add_argument("--steps", type=int, default=400, help="of the adapter's training, at most")
    made.add_argument("--lr", type=float, default=5e-3, help="of the adapter's training")
    args = made.parse_args()
    work = args.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    base = (args.base or work / "base").absolute()
    if not (base / "model.safetensors").is_file():
        print(json.dumps({"base": list_reader.build(base, args.limit)}), flush=True)
    files(work, base, args.train, args.held_out)
    store = ("--store", work / "store")
    scored = ("--kind", "crag", "--rule", "listrule:exact", *store)
    held = ("--data", work / "held.jsonl", *scored)
    everything = ("--data", "all.jsonl", "--out", "all", *scored)
    raypipe("eval", "base.yaml", "--models", "models.yaml", *everything, work=work)
    made_by, data = (digest((work / name).read_text()) for name in ("base.yaml", "train.jsonl"))
    train, stop = (
        {json.loads(line)["id"] for line in (work / f"{name}.jsonl").read_text().splitlines()}
        for name in ("train", "stop")
    )
    write_labels(work / "labels", labels_of(work / "all", train, stop), made_by, data)
    tuned = raypipe(
        "finetune", "tiny", "--labels", "labels", "--base", "reader", "--name", "abstain", "--out", "tuned",
        "--models", "models.yaml", *store, "--set", f"steps={args.steps}", "--set", f"lr={args.lr}",
        "--set", "evaluate_every=20", "--set", "save_every=20", work=work,
    )  # fmt: skip
    curve = [round(step["loss"], 4) for step in tuned["steps"]][:: max(1, args.steps // 20)]
    facts = {name: tuned[name] for name in ("looks", "step_taken", "seconds", "effect", "engine")}
    print(json.dumps({"loss": curve, **facts, "labels": tuned["labels"]["counts"]}), flush=True)
    for name in ("base", "tuned", "silent"):
        models = "tuned/models.yaml" if name == "tuned" else "models.yaml"
        raypipe("eval", f"{name}.yaml", "--models", models, "--out", f"run-{name}", *held, work=work)
        print(json.dumps({name: halves(work / f"run-{name}")}), flush=True)
    verdicts = {}
    for other in ("base", "silent"):
        found = raypipe("compare", f"run-{other}", "run-tuned", work=work)["comparisons"][0]
        verdicts[other] = found["verdict"]
        shown = {k: found[k] for k in ("verdict", "p", "score")}
        print(json.dumps({"against": other, **shown}), flush=True)
    live = raypipe("promote", "run-tuned", "--gate", "score>=0.2", *store, work=work)
    print(json.dumps({"live": live["id"], "score": live["score"], "gates": live["gates"]}))
    got = halves(work / "run-tuned")
    learned = got["unanswerable"]["missing"] >= ABSTAINED and got["answerable"]["exact"] >= RIGHT
    return 0 if learned and set(verdicts.values()) == {"better"} else 7


def files(work: Path, base: Path, train: int, held_out: int) -> None:
    """Recipes, models, the rule, and three disjoint sets of questions: to train on, to stop by, to score."""
    sets = {
        "train": questions(train, 1),
        "stop": questions(max(24, train // 8), 2),
        "held": questions(held_out, 3),
    }
    sets["all"] = [row for rows in sets.values() for row in rows]  # the base's engine starts once
    for name, rows in sets.items():
        (work / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / "listrule.py").write_text(RULE)
    entry = {"kind": "generator", "loader": "vllm", "path": str(base), "max_model_len": 256}
    (work / "models.yaml").write_text(yaml.safe_dump({"reader": entry}))
    for name, adapter, model in (
        ("base", None, "reader"),
        ("tuned", "abstain", "reader"),
        ("silent", None, "optional-llm"),
    ):
        (work / f"{name}.yaml").write_text(yaml.safe_dump(recipe(adapter, model), sort_keys=False))


if __name__ == "__main__":
    sys.exit(main())
