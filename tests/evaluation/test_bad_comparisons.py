"""What a hostile or hasty user types to compare, gate, sweep, show or fit ends in one clear error with its
exit code, and changes nothing."""

import json
import re
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.cli.main import main

LAUGHS = "\n".join(
    [f"a0: &a0 [{'x, ' * 9}x]", *(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}x]" for i in range(1, 9))]
)


def predicted(ids, answer, prediction):
    return [
        {"id": f"{ids}{i}", "query": f"who {ids} {i}?", "answer": answer, "prediction": prediction}
        for i in range(8)
    ]


FILES = {
    "doubled.jsonl": [{"id": "q0", "query": "who 0?", "answer": "ann", "prediction": "ann"}] * 2,
    "unanswered.jsonl": predicted("q", None, "x"),
    "elsewhere.jsonl": predicted("z", "ann", "ann"),
    "good.jsonl": predicted("q", "ann", "ann"),
    "unjudged.jsonl": predicted("q", "ann", "bob"),
    "half.jsonl": [{"id": "q0", "query": "who 0?", "prediction": "ann"}],
    "oddlabels.jsonl": [{"id": "q0", "prediction": "ann", "label": "maybe"}],
    "strangers.jsonl": [{"id": "q0", "prediction": "nobody said this", "label": "right"}],
}
TEXTS = {
    "cycle.yaml": "about: x\nquestion: &q [*q]\n",
    "laughs.yaml": f"question: []\n{LAUGHS}\n",
    "deep.yaml": "question: " + "[" * 50_000,
    "empty.yaml": "",
    "twice.yaml": "question: []\nquestion: []\n",
    "strange.yaml": "colour: blue\n",
}


@pytest.fixture(scope="module")
def at(ran, tmp_path_factory):
    """Names of what the commands are given, and the folder that they lie in."""
    home = tmp_path_factory.mktemp("bad")
    for name, lines in FILES.items():
        (home / name).write_text("".join(json.dumps(x) + "\n" for x in lines))
    for name, text in TEXTS.items():
        (home / name).write_text(text)
    (home / "binary").write_bytes(b"\x00\xff\xfe" * 50)
    shutil.copytree(ran.folder / "out", home / "foreign")
    pq.write_table(pa.table({"id": ["q0"], "price": [3]}), home / "foreign/results.parquet")
    shutil.copytree(ran.folder / "out", home / "cut")
    whole = (home / "cut/results.parquet").read_bytes()
    (home / "cut/results.parquet").write_bytes(whole[: len(whole) // 2])
    shutil.copytree(ran.folder / "out", home / "torn")
    (home / "torn/run.json").write_text('{"format": 2, "run": ')
    shutil.copytree(ran.folder / "store", home / "store")
    good = [{**x, "prediction": "ann"} for x in FILES["unjudged.jsonl"]]
    (home / "good.jsonl").write_text("".join(json.dumps(x) + "\n" for x in good))
    return {
        "run": ran.folder / "out",
        "here": home,
        "fakes": SUPPORT / "fakes.yaml",
        "models": ran.folder / "models.yaml",
    }


BAD = {  # a command in which {name} is something of `at` -> exit code, what it says
    # two runs
    "compare {here}/good.jsonl": (2, "expected two runs or more, found 1"),
    "compare {run} {here}/absent": (3, "absent: expected the folder of a finished eval, a file of predict"),
    "compare {here}/good.jsonl {here}/elsewhere.jsonl": (3, "found 0 common ids of 8 and 8"),
    "compare {run} {here}/elsewhere.jsonl": (3, "found 0 common ids"),
    "compare {here}/good.jsonl {here}/unanswered.jsonl": (3, "expected questions with golds, found none"),
    "compare {here}/good.jsonl {here}/unjudged.jsonl": (3, "the second 0. --rejudge MODEL"),
    "compare {here}/good.jsonl {here}/doubled.jsonl": (3, "expected each question once, found 'q0' twice"),
    "compare {here}/good.jsonl {here}/half.jsonl": (3, "half.jsonl:1: expected a field 'answer'"),
    "compare {here}/good.jsonl {here}/binary": (3, "binary:1: expected UTF-8 text"),
    "compare {run} {here}/foreign": (3, "found another Parquet file"),
    "compare {run} {here}/cut": (3, "expected the table of a finished eval"),
    "compare {run} {here}/torn": (3, "torn/run.json"),
    "compare {run} {here}": (3, "expected the --out folder of a finished eval"),
    "compare {run} {run} --measure ndcg_cut_10": (2, "kind crag has no such"),
    "compare {run} {run} --margin nan": (2, "expected a number above 0"),
    "compare {run} {run} --rule offical": (2, "did you mean 'official'"),
    "compare {run} {run} --rule no_such_module:rule": (2, "no_such_module"),
    "compare {run} {run} --group paper": (3, "expected a label 'paper' at every question"),
    "compare {run} {run} --labels {here}": (3, "expected a readable file"),
    "compare {run} {run} --labels {here}/oddlabels.jsonl": (3, "a label of right, wrong, unclear, or null"),
    "compare {run} {run} --rejudge": (2, "names no judge to take for all"),
    "compare {run} {run} --trim no-such-tokenizer": (2, "no such model"),
    "compare {run} live --store {here}/store": (2, "has no such release"),
    # gates
    "promote {run} --gate better": (2, "nothing is live to compare with"),
    "promote {run} --gate better --against {here}/absent": (3, "absent: expected the folder of a fini"),
    "promote {run} --gate better --against {here}/elsewhere.jsonl": (3, "found 0 common ids"),
    "promote {run} --gate score>=0.1 --against {run}": (2, "found neither"),
    "promote {run} --gate scor>=0.1": (2, "did you mean 'score'"),
    "promote {run} --gate score>=lots": (2, "or METRIC, one of"),
    "promote {run} --gate not-worse:nan": (2, "or METRIC, one of"),
    "promote {run} --gate score>=0.1 --min-scored nan": (2, "expected a share from 0 to 1"),
    "promote {here}/absent --gate better": (3, "found no such folder"),
    "promote {here}/torn": (3, "torn/run.json"),
    "promote {run} --store {here}/absent": (2, "absent"),
    "rollback --store {here}/store": (2, "no earlier release"),
    # sweeps
    "sweep {fakes} --set rerank.topp=5,10 --store {here}/store": (2, "rerank has no field 'topp'"),
    "sweep {fakes} --set rerank.top=5,five --store {here}/store": (2, "expected a whole number, found text"),
    "sweep {fakes} --set rerank.top=5,5 --store {here}/store": (2, "expected each value once"),
    "sweep {fakes} --set rerank.top=5,0x5 --store {here}/store": (2, "expected each value once"),
    "sweep {fakes} --set rerank.top=5 --store {here}/store": (2, "expected two points or more, found 1"),
    "sweep {fakes} --set rerank.top=[5,10 --store {here}/store": (2, "rerank.top"),
    "sweep {fakes} --set rerank.top=5,7 --measure hallucination --store {here}/store": (2, "more is better"),
    "sweep {fakes} --set rerank.top=5,7 --measure f2 --store {here}/store": (2, "has no such; known"),
    "sweep {fakes} --set rerank.top=5,7 --sample 0 --store {here}/store": (2, "expected at least 1"),
    "sweep {fakes} --set rerank.top=5,7 --store {here}/absent": (2, "absent"),
    "sweep {fakes} --set rerank.top=5,7 --judge no-such --store {here}/store": (4, "no-such"),
    "sweep {fakes} --set rerank.top=5,7 --out {here}/binary --store {here}/store": (2, "cannot be written"),
    "sweep {here}/strange.yaml --set rerank.top=5,7 --store {here}/store": (2, "strange.yaml"),
    # pages
    "view {here}/good.jsonl": (2, "is no folder"),
    "view {here}/store": (2, "expected finished evals, found none. `raypipe view` shows"),
    "view {run} --labels {here}": (2, "expected the name of a file to write, found the folder"),
    "view {run} --port 70000": (2, "expected 0 to 65535"),
    "inspect {run} --losses --at recal": (2, "recal"),
    "inspect {here} --losses": (3, "found no run.json, which is written last. The same `raypipe eval`"),
    "export {run} --as trec --out {here}": (2, "expected the name of a file to write, found the folder"),
    "export {run} --as crag --out {run}/results.parquet": (3, "belongs to the run"),
    # judges
    "judge check {here}/absent --run {run}": (3, "absent: expected a readable file"),
    "judge check {here}/oddlabels.jsonl --run {run}": (3, "a label of right, wrong, unclear, or null"),
    "judge check {here}/strangers.jsonl --run {run}": (3, "found 1 of others, such as question 'q0'"),
    "judge check {here}/strangers.jsonl": (2, "is no run's folder"),
    "judge check {here}/strangers.jsonl --run {here}/foreign": (3, "found another Parquet file"),
    "judge pick {here}/good.jsonl --out {here}/todo.jsonl": (2, "found neither"),
    "judge pick {run} --random 5 --out {here}/todo.jsonl": (3, "expected answers that a judge decided"),
    "judge pick {run} --disagreements 50 --out {here}/good.jsonl": (3, "it may hold labels"),
    "judge pick {run} --random 5 --out {here}/binary/todo.jsonl": (2, "is a file"),
    "judge pick {run} --random -1 --out {here}/todo.jsonl": (2, "expected at least 0"),
    "score crag {here}/good.jsonl --out {here}": (2, "expected the name of a file to write"),
    # fits
    "fit decide {here}/absent": (3, "found no such folder"),
    "fit decide {here}/good.jsonl": (2, "is a file"),
    "fit decide {run} --out {here}/abstain.txt": (2, "a name that ends with .yaml"),
    "fit decide {run} --out {here}/binary/abstain.yaml": (2, "is a file"),
    "fit decide {run} --out {here}/abstain.yaml --group paper": (3, "expected a label 'paper'"),
    "fit decide {run} --out {here}/abstain.yaml --measure ndcg": (2, "kind crag has no such"),
    "fit decide {run} --out {here}/abstain.yaml --split 2": (2, "expected 0 to 1"),
    "fit decide {run} --out {here}/abstain.yaml": (3, "expected at least 5 right and 5 wrong answers"),
    "fit fuse {run} --out {here}/w.yaml --step rerank": (3, "expected judged documents"),
    "fit fuse {run} --out {here}/w.yaml --scores tfidf": (3, "expected judged documents"),
    "fit fuse {here}/torn --out {here}/w.yaml": (3, "torn/run.json"),
    # files and operation
    "check {here}": (2, "{here}"),
    "check locall": (2, "did you mean"),
    "forget https://nowhere.example/ --dry-run --store {here}/store": (3, "found nothing named"),
    "forget https://nowhere.example/ --store {here}/store": (2, "expected one of --dry-run and --yes"),
    "eval {fakes} --data captured:7 --store {here}/store": (2, "expected captured:7d"),
    "eval {fakes} --data captured:7d --store {here}/store": (3, "no answers were captured in the last 7d"),
    "eval {fakes} --set decide.fitted={here}/strange.yaml --store {here}/store": (2, "strange.yaml"),
    "check --schemas {here}/binary": (2, "is a file"),
}


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAYPIPE_STORE", raising=False)


def ended(words):
    try:
        return main(words)
    except SystemExit as e:  # of argparse
        return e.code


def state(folder):
    return {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("command", BAD)
def test_a_bad_input_is_one_clear_error_with_its_exit_code(command, at, capsys):
    code, says = BAD[command][0], BAD[command][1].format(**at)
    before = state(at["here"])
    found = ended([word.format(**at) for word in command.split()])
    out, err = capsys.readouterr()
    name = "raypipe " + command.split()[0]
    lines = [line for line in err.splitlines() if line.startswith(name)]
    [said] = [line for line in lines if ": opening " not in line]
    assert (found, out) == (code, "") and says in said, err
    assert not re.search(r"\w\.\.\s", said), "a sentence ends in one full stop"
    assert state(at["here"]) == before, "nothing was changed"


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("binary", "cannot be read"),
        ("empty.yaml", "found nothing"),
        ("deep.yaml", "deep.yaml"),
        ("cycle.yaml", "recursive node"),
        ("laughs.yaml", "an alias repeats them"),
        ("twice.yaml", "'question' occurs twice"),
        ("strange.yaml", "found keys colour"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_problem_of_validate(file, says, at, capsys):
    assert main(["check", str(at["here"] / file)]) == 2
    out, err = capsys.readouterr()
    [line] = out.splitlines()
    assert says in line and str(at["here"]) in line and err == ""
