"""A small model learns when to say "i don't know": labels, adapter, scores on questions it has not seen.

    python bench/figures/fine_tuning.py --work DIR [--base FOLDER] [--train 120] [--held-out 60] [--steps 150]
        [--shares 0.1,0.5]

The base is a tiny Llama that reads lists of one entry (`list_reader`). Half of the questions are about a list
that does not have the value, and it says one, wrongly. `raypipe labels` gives "i don't know" where an answer
is wrong and the truth is not in the context, `finetune` makes the adapter. Then the base, the adapter, and a
recipe that always says "i don't know" answer held-out questions; then come `compare` and `promote` with its
gates. Prints a JSON line for each part, and keeps it in the folder: the same command continues after the
last. Exits with 7 unless at least .8 of the unanswerable questions are abstained, at least .5 of the
answerable ones right, and both comparisons say better; nor may the base itself abstain.

`--shares` trains an adapter for each share of labels that say "i don't know", as a worker of `finetune` does,
and asks it the held-out questions by transformers' greedy search. It does so in this process: the commands
would start Ray and an engine for each share.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import list_reader
import pyarrow.parquet as pq
import yaml

ABSTAINED, RIGHT = 0.8, 0.5  # of unanswerable questions; of answerable ones: abstaining alone is no success
BASE_ABSTAINED = 0.05  # of unanswerable questions, at most: a base that abstains leaves nothing to learn
FIRST = {"train": 100, "held": 700}  # numbers of lists: no question is in both sets
RULE = '''"""Right is what equals the gold: nothing is left to a judge."""


def exact(prediction):
    said = (prediction.prediction or "").strip().lower()
    if said == "i don't know":
        return "missing"
    return "exact" if said in prediction.truths else "hallucination"
'''
STORE = ("--store", "store")
RECIPES: dict[str, tuple[str | None, str]] = {  # adapter, model
    "tuned": ("abstain", "reader"),
    "base": (None, "reader"),
    "silent": (None, "optional-llm"),
}
OTHERS = ("base", "silent")
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


def questions(name: str, count: int) -> list[dict[str, Any]]:
    """Every second one is about a list that does not have the answer."""
    draw, made = random.Random(name), []
    for number in range(FIRST[name], FIRST[name] + count):
        about, value, answerable = (
            draw.choice(list_reader.NAMES),
            draw.choice(list_reader.VALUES),
            bool(number % 2),
        )
        made.append(
            {
                "id": f"{name}-{number}",
                "query": list_reader.question(number, about),
                "answer": value,
                "documents": [list_reader.listed(number, about, value if answerable else None)],
                "domain": "answerable" if answerable else "unanswerable",
            }
        )
    return made


def halves(run: Path) -> dict[str, dict[str, float]]:
    """Shares of right, abstained and wrong, of both kinds of questions."""
    rows = pq.read_table(run / "results.parquet").to_pylist()
    return by_kind((dict(row["labels"])["domain"], row["verdict"]) for row in rows)


def by_kind(verdicts: Iterable[tuple[str, str]]) -> dict[str, dict[str, float]]:
    """Kind of question -> verdict -> share, of pairs of both."""
    found: dict[str, list[str]] = {"answerable": [], "unanswerable": []}
    for kind, verdict in verdicts:
        found[kind].append(verdict)
    return {
        kind: {v: round(got.count(v) / len(got), 3) for v in ("exact", "missing", "hallucination")}
        for kind, got in found.items()
    }


def raypipe(*arguments: str | Path, work: Path) -> dict[str, Any]:
    """Returns the object that a command prints with --json."""
    command = [sys.executable, "-m", "raypipe", *map(str, arguments), "--json"]
    done = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def part(work: Path, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a part found, made now or read; printed."""
    file, began = work / f"{name}.json", time.monotonic()
    if not file.is_file():
        found = {**make(), "s": round(time.monotonic() - began)}
        file.write_text(json.dumps(found))
    read: dict[str, Any] = json.loads(file.read_text())
    print(json.dumps({name: read}), flush=True)
    return read


def main() -> int:
    """Prints a JSON line for each part; 7 where the adapter does not do what it should."""
    made = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    made.add_argument("--work", type=Path, required=True, help="a folder for everything")
    made.add_argument("--base", type=Path, help="a base that was built before (default: built in the folder)")
    made.add_argument("--limit", type=float, default=300.0, help="seconds of the base's own training")
    made.add_argument("--train", type=int, default=120, help="questions to label")
    made.add_argument("--held-out", type=int, default=60, help="questions to score")
    made.add_argument("--steps", type=int, default=150, help="of the adapter's training, at most")
    made.add_argument(
        "--shares", type=numbers, default=[], help="of labels that abstain: an adapter for each"
    )
    made.add_argument("--lr", type=float, default=5e-3, help="of the adapter's training")
    args = made.parse_args()
    work = args.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    base = (args.base or work / "base").absolute()
    if args.base is None:
        part(work, "base", lambda: list_reader.build(base, args.limit))
    files(work, base, args.train, args.held_out)
    part(work, "labels", lambda: labelled(work))
    part(work, "adapter", lambda: tuned(work, args.steps, args.lr))
    got = {name: part(work, f"scored-{name}", partial(scored, work, name)) for name in RECIPES}
    verdicts = [part(work, f"against-{other}", partial(compared, work, other)) for other in OTHERS]
    part(work, "promoted", lambda: promoted(work))
    for share in args.shares:
        part(work, f"share-{share:g}", partial(of_share, work, args.steps, args.lr, share, args.held_out))
    half = got["tuned"]
    learned = half["unanswerable"]["missing"] >= ABSTAINED and half["answerable"]["exact"] >= RIGHT
    learned = learned and got["base"]["unanswerable"]["missing"] <= BASE_ABSTAINED
    return 0 if learned and {v["verdict"] for v in verdicts} == {"better"} else 7


def labelled(work: Path) -> dict[str, Any]:
    """`raypipe labels`: the base answers, and the words of the truths judge."""
    found = raypipe(
        "labels",
        "base.yaml",
        "--data",
        "train.jsonl",
        "--against",
        "held.jsonl",
        "--judge",
        "words",
        "--models",
        "models.yaml",
        "--out",
        "labels",
        *STORE,
        work=work,
    )
    return {name: found[name] for name in ("labels", "split", "mix")}


def tuned(work: Path, steps: int, lr: float) -> dict[str, Any]:
    """`raypipe finetune`, and its curve."""
    found = raypipe(
        "finetune",
        "tiny",
        "--labels",
        "labels",
        "--base",
        "reader",
        "--name",
        "abstain",
        "--out",
        "tuned",
        "--models",
        "models.yaml",
        *STORE,
        "--set",
        f"steps={steps}",
        "--set",
        f"lr={lr}",
        "--set",
        "evaluate_every=50",
        "--set",
        "save_every=50",
        work=work,
    )
    curve = [round(step["loss"], 4) for step in found["steps"]][:: max(1, steps // 20)]
    facts = ("looks", "step_taken", "seconds", "effect", "engine")
    return {"loss": curve, **{name: found[name] for name in facts}}


def scored(work: Path, name: str) -> dict[str, Any]:
    """One recipe on the held-out questions."""
    models = "tuned/models.yaml" if name == "tuned" else "models.yaml"
    raypipe(
        "eval",
        f"{name}.yaml",
        "--models",
        models,
        "--out",
        f"run-{name}",
        "--data",
        "held.jsonl",
        "--kind",
        "crag",
        "--rule",
        "listrule:exact",
        *STORE,
        work=work,
    )
    return halves(work / f"run-{name}")


def compared(work: Path, other: str) -> dict[str, Any]:
    """The adapter against another recipe, question by question."""
    found = raypipe("compare", f"run-{other}", "run-tuned", work=work)["comparisons"][0]
    return {name: found[name] for name in ("verdict", "p", "score")}


def promoted(work: Path) -> dict[str, Any]:
    """The release, through its gate."""
    live = raypipe("promote", "run-tuned", "--gate", "score>=0.1", *STORE, work=work)
    return {name: live[name] for name in ("id", "score", "gates")}


def numbers(text: str) -> list[float]:
    """Numbers that are parted by commas."""
    return [float(one) for one in text.split(",")]


def of_share(work: Path, steps: int, lr: float, share: float, held_out: int) -> dict[str, Any]:
    """An adapter of labels of which a share abstains: its training rows, and both halves of its replies."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from raypipe.api.session import Session
    from raypipe.contrib.finetune.finetune_inputs import read_inputs
    from raypipe.contrib.finetune.label_files import read_labels, write_labels
    from raypipe.contrib.finetune.model import write_adapter
    from raypipe.contrib.finetune.trainer import train
    from raypipe.contrib.finetune.training_labels import mix_of, mixed

    folder, given = work / f"idk-{share:g}", read_labels(work / "labels")
    labels = mixed(given.labels, share)
    write_labels(folder, labels, given.recipe, given.data)
    sets = (f"steps={steps}", f"lr={lr}", "evaluate_every=50", "save_every=50")
    session = Session(models=str(work / "models.yaml"))
    found = read_inputs(session, "tiny", folder, "reader", None, sets)
    with tempfile.TemporaryDirectory() as scratch:
        adapter = train(found.job, Path(scratch), lambda point: None, lambda checkpoint: None)
        write_adapter(Path(scratch) / "adapter", adapter.tensors, found.model, found.preset, {})
        base = AutoModelForCausalLM.from_pretrained(found.model.path)
        net = PeftModel.from_pretrained(base, str(Path(scratch) / "adapter"))
    (train_mix,) = mix_of([x for x in labels if x.split == "train"])[-1:]
    asked = questions("held", held_out)
    verdicts = [(row["domain"], verdict(replied(net, found.chats, row), row["answer"])) for row in asked]
    return {"train": train_mix.labels, "idk": train_mix.idk, "step_taken": adapter.taken, **by_kind(verdicts)}


def replied(net: Any, chats: Any, row: dict[str, Any]) -> str:
    """What a model replies to a question, asked as the recipe asks it, by greedy search."""
    import torch

    asked = f"<DOC>\n{row['documents'][0]}\n</DOC>\n{row['query']}"
    turns = [{"role": "system", "content": list_reader.SYSTEM}, {"role": "user", "content": asked}]
    ids = chats.tokenizer.apply_chat_template(
        turns, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    net.eval()
    more = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": sorted(chats.ends)}
    with torch.no_grad():
        told = net.generate(input_ids=torch.tensor([ids]), **more)[0, len(ids) :]
    text: str = chats.tokenizer.decode(told, skip_special_tokens=True)
    return text.strip().lower()


def verdict(said: str, truth: str) -> str:
    """As RULE has it."""
    return "missing" if said == "i don't know" else "exact" if said == truth else "hallucination"


def files(work: Path, base: Path, train: int, held_out: int) -> None:
    """Recipes, models, the rule, and two disjoint sets of questions: to label, and to score."""
    for name, count in (("train", train), ("held", held_out)):
        lines = "".join(json.dumps(row) + "\n" for row in questions(name, count))
        (work / f"{name}.jsonl").write_text(lines)
    (work / "listrule.py").write_text(RULE)
    entry = {"kind": "generator", "loader": "vllm", "path": str(base), "max_model_len": 256}
    (work / "models.yaml").write_text(yaml.safe_dump({"reader": entry}))
    for name, (adapter, model) in RECIPES.items():
        (work / f"{name}.yaml").write_text(yaml.safe_dump(recipe(adapter, model), sort_keys=False))


if __name__ == "__main__":
    sys.exit(main())
