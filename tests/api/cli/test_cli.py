"""The command line: what programs may rely on, exit codes, and messages that say what to do."""

import argparse
import bz2
import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
from checkout import ROOT, SUPPORT
from outputs import schemas

import raypipe
from raypipe.api.cli.command import COMMANDS, GROUPS
from raypipe.api.cli.main import main, parser
from raypipe.serving.access import MEMO_MB
from raypipe.store import Store

FAKES = str(SUPPORT / "fakes.yaml")


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RAYPIPE_STORE", raising=False)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)


def run(capsys, *args):
    """Exit code, stdout, stderr of one command in this process."""
    code = main([str(a) for a in args])
    said = capsys.readouterr()
    return code, said.out, said.err


def commands(within=None, before=""):
    """Every command with its parser, such as `eval` and `score crag`."""
    found = {}
    for action in (within or parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, made in action.choices.items():
                found |= commands(made, f"{before}{name} ") or {f"{before}{name}": made}
    return found


@pytest.mark.parametrize("name", commands())
def test_help_has_an_example_that_can_be_parsed(name):
    text = commands()[name].format_help()
    example = text.split("example:\n")[1].strip()
    assert example.startswith(f"raypipe {name} ")
    import shlex

    parser().parse_args(shlex.split(example)[1:])


@pytest.mark.parametrize("name", commands())
def test_help_begins_with_a_verb_and_ends_a_sentence(name):
    about = commands()[name].description
    verb = about.split()[0]
    assert verb[0].isupper() and not verb.endswith("s") and about.endswith("."), about


def loaded(*args, home):
    """Modules that one command loads in a process of its own, its exit code and its texts."""
    code = "import sys; from raypipe.api.cli.main import main; sys.argv[1:] = sys.argv[1:]\n"
    code += "try: code = main(sys.argv[1:])\nexcept SystemExit as e: code = e.code\n"
    code += "print(code, *sys.modules)"
    env = {**os.environ, "RAYPIPE_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code, *args], env=env, capture_output=True, text=True)
    code, *modules = done.stdout.splitlines()[-1].split()
    return set(modules), int(code), done.stdout + done.stderr


@pytest.mark.parametrize("args", [["--help"], ["eval", "--help"], ["--version"]])
def test_a_closed_output_leaves_no_trace(args):
    code = "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1)\n"
    code += "from raypipe.api.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *args], stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--help",), 0, "run: run a recipe over a store"),
        ((), 0, "usage: raypipe COMMAND"),
        (("--version",), 0, "raypipe 0.1.0 ("),
        (("plam",), 2, "unknown command 'plam'; did you mean 'plan'?"),
        (("--versio",), 2, "unknown option '--versio'; did you mean '--version'?"),
        (("eval", "--ouut", "x"), 2, "did you mean '--out'?"),
        (("score", "crga"), 2, "did you mean 'crag'?"),
        (("score", "crag", "x", "--rule", "offical"), 2, "did you mean 'official'?"),
        (("ask", "how long is it?"), 2, "raypipe ask: missing: QUESTION, or --turns FILE"),
        (
            ("ask", "rag", "how long?", "--where", " "),
            2,
            "where: expected a condition, such as team = 'hr' and date >= '2025-01-01', found an empty text",
        ),
        (("eval", "local", "--judg", "x", "--strange"), 2, "unexpected --strange"),
        (("eval", "local", "ten.csv"), 2, "did you mean --data ten.csv?"),
        (("plan", "--help"), 0, "Estimate the model calls, time and memory of an eval"),
    ],
)
def test_help_and_mistakes_load_no_library(args, code, says, tmp_path):
    modules, found, text = loaded(*args, home=tmp_path)
    assert found == code and says in text, text
    assert not modules & {"numpy", "pyarrow", "rich", "asyncio", "pydantic"}
    assert len(modules) < 225, "163: 0.06 s of CPU; 215 and 0.09 s where the names of plugins are read"
    opened = {m for m in modules if m.startswith("raypipe.contrib.") and m.count(".") > 2}
    assert all(m.endswith(".plugin") for m in opened), "names of plugins come from their tables alone"


@pytest.mark.parametrize("words", ["ask rag --docs x who?", "inspect DIR --at answer ROW"])
def test_an_argument_after_an_option_is_told_where_it_stands(capsys, words):
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert f"unexpected {words.split()[-1]}; arguments stand before options\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("eval --fields query=q --fields answer=a", "once, with commas between, found query=q and answer=a"),
        ("eval --store /a --limit 3 --store=/b", "argument --store: expected once, found /a and /b"),
        ("eval --top-k=5", "eval: unexpected --top-k=5\n"),
        ("eval --max-cost 5", "did you mean '--max-hours' or '--max-calls' or '--max-usd'?"),
    ],
)
def test_an_option_that_is_given_twice_or_not_known_is_refused_in_a_line(capsys, words, said):
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    err = capsys.readouterr().err
    assert said in err and err.endswith("all options: raypipe eval --help\n") and err.count("\n") == 4


def test_files_of_several_options_are_all_taken():
    from raypipe.api.cli.main import read

    assert read(["eval", "--data", "a", "b", "--limit", "3", "--data", "c"]).data == ["a", "b", "c"]
    assert "data" not in read(["eval"])


def test_every_command_is_listed_in_its_group_within_80_columns(capsys):
    _, out, _ = run(capsys, "--help")
    assert all(re.search(rf"^  {name} ", out, re.MULTILINE) for name in COMMANDS)
    assert all(re.search(rf"^{group}: ", out, re.MULTILINE) for group in GROUPS)
    assert {c.group for c in COMMANDS.values()} == set(GROUPS)
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_module_declares_it_alone_or_with_its_group(name):
    [action] = [a for a in parser([name])._actions if isinstance(a, argparse._SubParsersAction)]
    assert name in action.choices and {COMMANDS[n].module for n in action.choices} == {COMMANDS[name].module}


def test_choices_of_the_command_line_are_those_of_the_code():
    from typing import get_args

    from raypipe.contrib.crag.language.example_bank import Domain
    from raypipe.contrib.crag.public_data import Kind

    sources = commands()["facts build"]._option_string_actions["--source"].choices
    domains = commands()["kg examples import"]._option_string_actions["--domain"].choices
    assert set(sources) == set(get_args(Kind)) and set(domains) == set(get_args(Domain))


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_script_knows_commands_and_flags(capsys, shell):
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0 and "inspect" in out and "--retry-faults" in out
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=out, text=True, check=True)


def test_the_command_writes_schemas(capsys, tmp_path):
    code, *_ = run(capsys, "check", "--schemas", tmp_path / "schemas")
    assert code == 0 and {p.stem for p in (tmp_path / "schemas").iterdir()} == {
        "cluster",
        "examples",
        "finetune",
        "graphs",
        "models",
        "recipe",
    }


# What takes time to import and is of no use to commands that only look: each would be felt.
SLOW = {
    "ray",
    "torch",
    "transformers",
    "vllm",
    "FlagEmbedding",
    "lancedb",
    "fastapi",
    "pydantic",
    "httpx",
    "uvicorn",
    "tokenizers",
    "lark",
    "bs4",
    "rich.progress",
    "raypipe.evaluation.evaluate",
    "raypipe.runs.plan.planner",
    "raypipe.serving",
    "raypipe.contrib.world",
}


@pytest.mark.drill
@pytest.mark.slow
def test_looking_at_a_run_loads_no_more_than_it_needs(ran, tmp_path):
    row = json.loads((ran.folder / "out" / "predictions.jsonl").read_text().splitlines()[0])["id"]
    folder, store = str(ran.folder / "out"), str(ran.folder / "store")
    looks = ("inspect", folder, row), ("inspect", folder, "--faults"), ("releases", "--store", store)
    for args in looks:
        modules, code, text = loaded(*args, home=tmp_path)
        assert code == 0, text
        needless = SLOW - {"pydantic"} | ({"blingfire"} if row not in args else set())  # it follows `extract`
        assert not modules & needless, f"{args[0]}: at most 0.8 s of CPU without these"


def test_scoring_a_file_loads_no_more_than_it_needs(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"query": "q", "answer": "a", "prediction": "a"}\n')
    modules, code, text = loaded("score", "crag", str(tmp_path / "p.jsonl"), home=tmp_path)
    assert code == 0, text
    assert not modules & (SLOW | {"pyarrow", "lance", "pandas", "jinja2"}), "0.25 s of CPU without these"


def test_the_module_runs_without_importing_ray_or_torch():
    code = (
        "import sys; from raypipe.api.cli.main import parser; parser(); "
        "print({'ray', 'torch'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout.strip() == "set()", said.stderr


def test_a_recipe_mistake_is_exit_code_2_and_names_what_was_meant(capsys, world, tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        Path(FAKES).read_text().replace("{model: hash-embedder, top: 30}", "{model: hash-embedder, topp: 30}")
    )
    code, _, err = run(capsys, "eval", recipe, "--data", world, "--store", tmp_path / "s")
    assert code == 2 and "did you mean 'top'?" in err
    code, _, err = run(capsys, "eval", "locall", "--data", world, "--store", tmp_path / "s")
    assert code == 2 and "did you mean 'local'?" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval", "lokal"], "no 'lokal' under recipes/; did you mean 'local'?"),
        (["eval", "local", "--cluster", "labtop"], "no 'labtop' under clusters/; did you mean 'laptop'?"),
        (["eval", "local", "--judge", "llama-3-8"], "did you mean 'llama-3-8b'?"),
        (["eval", "local", "--rule", "no_such_module:verdict"], "no_such_module"),
    ],
)
def test_a_misspelt_name_is_refused_before_the_demo_is_invented(capsys, tmp_path, words, said):
    code, out, err = run(capsys, *words)
    assert code in (2, 4) and said in err and not out
    assert not (tmp_path / "home").exists(), "neither data nor a store"


def test_a_misspelt_name_is_refused_before_a_store_is_made(capsys, world, tmp_path):
    place = ["--data", world, "--store", tmp_path / "s"]
    code, _, err = run(capsys, "eval", FAKES, *place, "--cluster", "labtop")
    assert code == 2 and "'laptop'" in err and not (tmp_path / "s").exists()


@pytest.mark.slow
def test_it_is_said_which_questions_are_taken_where_data_is_missing(capsys, ran, tmp_path, monkeypatch):
    store = ran.folder / "store"
    code, out, err = run(capsys, "plan", FAKES, "--store", store, "--json")
    opening, line = f"raypipe plan: opening {FAKES}\n", f"no --data: the questions in {store}\n"
    assert code == 0 and err == opening + line and json.loads(out)
    code, _, err = run(capsys, "eval", FAKES, "--changes", "--store", tmp_path / "none")
    assert code == 2 and err.splitlines()[1] == f"no --data: the questions in {tmp_path / 'none'}"
    assert not (tmp_path / "none").exists(), "no store is made to be found empty"
    monkeypatch.setenv("RAYPIPE_STORE", str(store))
    code, _, err = run(capsys, "plan", FAKES)
    assert code == 0 and err == opening + line


@pytest.mark.slow
def test_the_demo_is_said_to_be_one(capsys, tmp_path):
    (tmp_path / "home/stores/default").mkdir(parents=True)
    (tmp_path / "file").write_text("no folder")
    code, _, err = run(capsys, "eval", FAKES, "--out", tmp_path / "file" / "out")
    assert code == 2 and "cannot be written" in err
    _, first, second, *_ = err.splitlines()
    home = tmp_path / "home/stores"
    assert first.startswith("no --data and no --store: the demo, 20 invented questions with 50 pages each")
    assert first.endswith(f", in {home}/demo") and second.endswith(f"--store {home}/default")


@pytest.mark.ray
def test_missing_and_truncated_data_are_exit_code_3(capsys, local_ray, world, tmp_path):
    code, _, err = run(capsys, "eval", FAKES, "--data", tmp_path / "none.jsonl", "--store", tmp_path / "s")
    assert code == 3 and "none.jsonl: no such file" in err
    cut = tmp_path / "cut.jsonl.bz2"
    cut.write_bytes(bz2.compress(next(world.glob("questions*.jsonl")).read_bytes())[:-30])
    code, _, err = run(capsys, "ingest", cut, "--store", tmp_path / "s")
    assert code == 3 and "cut.jsonl.bz2" in err


def test_a_place_that_cannot_be_written_is_exit_code_2_before_anything_starts(capsys, world, tmp_path):
    file = tmp_path / "file"
    file.write_text("no folder")
    evaluated = ["eval", FAKES, "--data", str(world), "--store", str(tmp_path / "store"), "--out"]
    for command in ([*evaluated, str(file / "out")], ["synth", str(file / "world"), "--questions", "1"]):
        code, out, err = run(capsys, *command)
        assert code == 2 and f"{command[-1] if command[0] == 'eval' else command[1]} cannot be written" in err
        assert not out
    assert Store.open(str(tmp_path / "store")).count("questions") == 0, "nothing was read"


def test_a_model_that_is_not_here_is_exit_code_4_with_the_way_to_get_it(capsys, world, tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(Path(FAKES).read_text().replace("hash-embedder", "bge-base-en-v1.5"))
    code, _, err = run(capsys, "ask", recipe, "who?", "--pages", one_line(world, tmp_path))
    assert code == 4 and "BAAI/bge-base-en-v1.5" in err and "hf download" in err


@pytest.mark.ray
def test_too_few_cpus_are_exit_code_5_with_numbers_before_anything_starts(capsys, local_ray, world, tmp_path):
    text = (ROOT / "conf/clusters/laptop.yaml").read_text()
    cluster = tmp_path / "big.yaml"
    cluster.write_text(text.replace("embed:  {actors: 2, cpus: 1}", "embed:  {actors: 5, cpus: 1}"))
    code, _, err = run(
        capsys,
        "eval",
        FAKES,
        "--data",
        world,
        "--store",
        tmp_path / "s",
        "--cluster",
        cluster,
        "--out",
        tmp_path / "o",
    )
    assert code == 5 and "pool embed: 5 actors x 1 CPU = 5 CPU, the cluster has 4" in err


@pytest.mark.slow
def test_a_second_eval_neither_starts_ray_nor_imports_it(bench):
    words = ["eval", FAKES, "--data", bench.world, "--format", "crag"]
    words += ["--store", bench.folder / "store", "--out", bench.folder / "o"]
    code = f"""
import sys
from raypipe.api.cli.main import main
code = main({[str(w) for w in words]})
assert not {{"ray", "torch"}} & set(sys.modules), "a run with nothing to do"
sys.exit(code)
"""
    env = {**os.environ, "RAY_ADDRESS": "local", "RAYPIPE_HOME": str(bench.folder)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "0 new, 6 reused" in done.stdout, done.stderr


@pytest.mark.ray
@pytest.mark.drill
def test_workers_of_a_ray_that_is_started_here_have_the_priority_of_other_work():
    code = """
import os, ray
from raypipe.runs.cluster import connection
connection.connect("local")
assert ray.get(ray.remote(num_cpus=1)(lambda: os.nice(0)).remote()) == os.nice(0)
"""
    env = {k: v for k, v in os.environ.items() if k != "RAY_worker_niceness"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.ray
def test_a_dry_run_checks_and_plans_and_does_nothing(capsys, local_ray, world, tmp_path):
    args = ["eval", FAKES, "--data", world, "--store", tmp_path / "s", "--out", tmp_path / "o", "--dry-run"]
    code, out, _ = run(capsys, *args, "--json")
    planned = json.loads(out)
    assert code == 0 and not (tmp_path / "o").exists()
    assert {s["step"]: s["max_calls"] for s in planned["steps"]}["parse"] > 0
    assert planned["placement"]["pools"][0]["name"] == "pool parse"
    code, out, _ = run(capsys, *args, "--json")
    assert json.loads(out)["steps"] == planned["steps"], "nothing was done meanwhile"


def test_a_relative_store_in_a_submitted_job_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    code, _, err = run(capsys, "eval", "local", "--until", "index", "--store", "here")
    assert code == 2 and "--store 'here' is relative" in err


def one_line(world, tmp_path):
    file = tmp_path / "one.jsonl"
    file.write_text(next(world.glob("questions*.jsonl")).read_text().splitlines()[0])
    return file


def test_ask_over_pages_in_a_file_gives_answer_hits_and_timings(capsys, world, tmp_path):
    file = one_line(world, tmp_path)
    query = json.loads(file.read_text())["query"]
    code, out, _ = run(capsys, "ask", FAKES, query, "--pages", file, "--json")
    said = json.loads(out)
    assert code == 0 and said["query"] == query and said["outcome"] in ("answered", "abstained")
    assert said["hits"] and set(said["hits"][0]) == {"chunk", "url", "span", "scores"}
    assert {"degraded", "confidence", "citations", "usage", "faults"} <= set(said)
    assert said["timings_ms"]["total"] > 0 and said["versions"]["recipe"]


@pytest.mark.ray
def test_ask_refuses_a_time_that_is_none_and_says_what_is_one(capsys, world, tmp_path):
    asked = ("ask", FAKES, "who?", "--pages", one_line(world, tmp_path), "--time", "yesterday")
    code, _, err = run(capsys, *asked)
    assert code == 3 and "'yesterday' is no time of asking: expected MM/DD/YYYY, HH:MM:SS PT" in err


def test_eval_json_is_one_object_with_the_fields_that_programs_rely_on(capsys, local_ray, world, tmp_path):
    args = ("eval", FAKES, "--data", world, "--store", tmp_path / "s", "--out", tmp_path / "o", "--json")
    code, out, _ = run(capsys, *args)
    report = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    fields = "run recipe digest questions citations distinct_pages chunks faults answers measures by_rule"
    assert {*fields.split(), "losses", "seconds", "steps"} <= set(report)
    assert all(
        {"step", "rows", "computed", "cached", "skipped", "faults", "seconds"} <= set(s)
        for s in report["steps"]
    )
    assert report["questions"] == 6 and report["citations"] == 72
    code, out, _ = run(capsys, "ask", FAKES, "no such question", "--store", tmp_path / "s", "--json")
    assert code == 0 and json.loads(out)["outcome"] in ("answered", "abstained")


def test_a_run_without_out_takes_no_other_runs_folder(tmp_path):
    from raypipe.api.paths import unused

    now = time.struct_time((2026, 3, 1, 9, 5, 7, 6, 60, 0))
    taken = []
    for _ in range(3):
        taken.append(unused(tmp_path / "runs", now))
        taken[-1].mkdir(parents=True)
    assert [f.name for f in taken] == ["2026-03-01-090507", "2026-03-01-090507-2", "2026-03-01-090507-3"]


def test_parse_gives_a_json_line_a_file_and_counts_what_is_no_page(capsys, tmp_path):
    good, bad = tmp_path / "good.html", tmp_path / "bad.html"
    good.write_text("<p>one</p><p>two</p><script>three</script>")
    bad.write_bytes(b"%PDF-1.7\n\x00\x01")
    code, out, _ = run(capsys, "parse", good, bad, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 3
    assert lines[0] == {"format": 1, "file": str(good), "text": "one two", "fault": None}
    assert lines[1]["text"] is None and lines[1]["fault"]["reason"] == "not_html"


def test_what_code_of_a_user_prints_is_not_in_the_json(tmp_path):
    (tmp_path / "talking.py").write_text("def verdict(row):\n    print('loud')\n    return 'correct'\n")
    (tmp_path / "p.jsonl").write_text(json.dumps({"query": "q", "answer": "a", "prediction": "a"}) + "\n")
    words = [
        sys.executable,
        "-m",
        "raypipe",
        "score",
        "crag",
        "p.jsonl",
        "--rule",
        "talking:verdict",
        "--json",
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(done.stdout)["by_rule"]["score"]["score"] == 1.0 and "loud" in done.stderr


def test_score_crag_reads_any_systems_predictions(capsys, tmp_path):
    file = tmp_path / "p.jsonl"
    rows = [("paris", "Paris"), ("4", "i don't know"), ("rome", "berlin"), ("oslo", "perhaps oslo")]
    judged = [{}, {}, {"judge_response": '{"score": 0}'}, {}]
    file.write_text(
        "\n".join(
            json.dumps({"query": "q", "answer": a, "prediction": p, **j})
            for (a, p), j in zip(rows, judged, strict=True)
        )
    )
    code, out, _ = run(capsys, "score", "crag", file, "--json")
    score = json.loads(out)["by_rule"]["score"]
    assert code == 0
    assert (score["n_correct"], score["n_miss"], score["n_hallucination"], score["n_unscored"]) == (
        1,
        1,
        1,
        1,
    )


@pytest.mark.slow
def test_score_qa_needs_no_judge_and_takes_files_and_runs(capsys, ran, tmp_path):
    file = tmp_path / "p.jsonl"
    rows = [("a", "Paris", "in Paris", []), ("b", "rome", "berlin", ["Berlin"]), ("c", "oslo", None, [])]
    lines = [
        {
            "query": q,
            "answer": a,
            "prediction": p,
            "alternatives": more,
            "judge_response": "{}",
            "judge_rule": "accuracy",
        }
        for q, a, p, more in rows
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    code, out, err = run(capsys, "score", "qa", file, "--json")
    assert code == 0, err
    found = json.loads(out)
    jsonschema.validate(found, dict(schemas())["score qa"])
    means = {m["measure"]: (round(m["mean"], 3), m["scored"], m["of"]) for m in found["measures"]}
    assert means == {"f1": (0.833, 2, 3), "exact_match": (0.5, 2, 3), "contains": (1.0, 2, 3)}
    code, out, err = run(capsys, "score", "qa", ran.folder / "out")
    report = json.loads((ran.folder / "out/run.json").read_text())
    f1 = next(m["mean"] for m in report["measures"] if m["measure"] == "f1")
    assert code == 0 and f"{f1:.3f}" in out, err
    file.write_text(json.dumps({"query": "q", "answer": None, "prediction": "x"}))
    assert run(capsys, "score", "qa", file)[0] == 3


def test_models_lists_the_server_that_stands_in_for_a_recipes_language_models(capsys):
    code, out, err = run(capsys, "models", "rag", "--llm", "http://127.0.0.1:9/v1#my/model", "--json")
    assert code == 0, err
    found = {m["name"]: m for m in json.loads(out)["models"]}
    assert found["my/model"]["state"] == "remote" and "my/model at endpoint" in found["my/model"]["where"]
    code, _, err = run(capsys, "models", "add", "x", "--llm", "http://127.0.0.1:9/v1#my/model")
    assert code == 2 and "--llm" in err


@pytest.mark.slow
def test_score_crag_reads_the_predictions_of_a_run_and_gives_the_score_of_its_report(capsys, ran):
    code, out, err = run(capsys, "score", "crag", ran.folder / "out" / "predictions.jsonl", "--json")
    assert code == 0, err
    scored, report = json.loads(out), json.loads((ran.folder / "out" / "run.json").read_text())
    assert scored["by_rule"]["score"]["total"] == 6 and scored["by_rule"] == report["by_rule"]


def test_rank_writes_a_trec_run_whose_score_ranking_reads(capsys, local_ray, tmp_path):
    corpus, queries, qrels = tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl", tmp_path / "q.trec"
    texts = {"a": "the river flows north", "b": "bread and butter", "c": "a northern river of salmon"}
    corpus.write_text("\n".join(json.dumps({"_id": i, "title": i, "text": t}) for i, t in texts.items()))
    queries.write_text(json.dumps({"_id": "q1", "text": "which river has salmon"}))
    qrels.write_text("q1 0 c 1\n")
    for by in ("bm25", "dense", "final"):
        out = tmp_path / f"{by}.trec"
        code, _, err = run(
            capsys,
            "rank",
            str(SUPPORT / "fakes.yaml"),
            "--corpus",
            corpus,
            "--queries",
            queries,
            "--out",
            out,
            "--by",
            by,
        )
        assert code == 0, err
        assert out.read_text().split()[:3] == ["q1", "Q0", "c"]
    code, out, _ = run(
        capsys, "score", "ranking", "--run", tmp_path / "final.trec", "--qrels", qrels, "--json"
    )
    assert code == 0 and json.loads(out)["means"]["recip_rank"] == 1.0
    code, _, err = run(
        capsys,
        "rank",
        FAKES,
        "--corpus",
        corpus,
        "--queries",
        queries,
        "--out",
        tmp_path / "x",
        "--by",
        "cosine",
    )
    assert code == 2 and "gives it; known: bm25, dense, fuse, rerank, final" in err


def test_a_recipe_with_a_graph_is_indexed_and_ranks_without_one_and_asks_for_it_to_answer(
    capsys, local_ray, tmp_path
):
    lines = (SUPPORT / "fakes.yaml").read_text().splitlines()
    at = lines.index("question:") + 1
    lines[at:at] = [
        "  - match_calls: {graph: world, bank: calls, embedder: hash-embedder, least: 0.9}",
        "  - kg_query: {graph: world, calls: calls, rule: rule, answer: kg}",
    ]
    lines = [line.replace("top: 30}", "top: 30, when: {kg: [abstained]}}") for line in lines]
    recipe, store = tmp_path / "kg.yaml", ("--store", tmp_path / "s")
    recipe.write_text("\n".join(lines).replace("prefer: [extract]", "prefer: [kg, extract]"))
    run(capsys, "synth", tmp_path / "w", "--questions", 3, "--pages", 2, "--page-chars", 1000)
    assert run(capsys, "ingest", tmp_path / "w", *store)[0] == 0
    code, out, err = run(capsys, "eval", recipe, "--until", "index", *store, "--json")
    assert code == 0 and json.loads(out)["steps"], err
    code, _, err = run(capsys, "rank", recipe, *store, "--out", tmp_path / "r.trec")
    assert code == 0, err
    code, _, err = run(capsys, "eval", recipe, "--until", "answer", *store)
    assert code == 2 and "--graph world=FOLDER" in err


@pytest.mark.slow
def test_synth_then_ingest_counts_what_was_written(capsys, tmp_path):
    args = ("synth", tmp_path / "w", "--questions", 3, "--pages", 4, "--page-chars", 1200, "--json")
    code, out, _ = run(capsys, *args)
    made = json.loads(out)
    assert code == 0 and made["questions"] == 3 and made["citations"] == 12
    code, out, _ = run(capsys, "ingest", tmp_path / "w", "--store", tmp_path / "s", "--json")
    read = json.loads(out)
    assert code == 0 and read["questions"] == read["rows"] == 3 and not read["again"]
    code, out, _ = run(capsys, "ingest", tmp_path / "w", "--store", tmp_path / "s", "--json")
    assert json.loads(out)["again"]
    bad = tmp_path / "bad.jsonl"
    good = next((tmp_path / "w").glob("questions*.jsonl")).read_text().splitlines()[0]
    bad.write_text(f'{{"broken": \n[]\n{good}\n')
    code, out, _ = run(capsys, "ingest", bad, "--store", tmp_path / "s")
    assert code == 0 and re.search("faults +2\n", out), out
    assert re.search("omitted, bad json +1\n", out) and re.search("omitted, not object +1\n", out), out
    assert f"  {bad}:2: not object: expected an object, found a list\n" in out


OWN_LINES = """
{"id": 1, "question": "who founded it?", "answer": "Ann"}
{"interaction_id": "b", "query": "?", "query_time": "", "answer": "19", "search_results": [{"page_name": ""}]}
{"interaction_id": "c", "query": "where?", "query_time": "", "answer": ["Oslo"], "search_results": []}
{"interaction_id": "d", "query": "
"""


@pytest.mark.parametrize("command", ["ingest", "plan"])
def test_a_file_of_which_nothing_can_be_read_is_exit_code_3_with_line_and_field(capsys, tmp_path, command):
    refused(capsys, tmp_path, command)


@pytest.mark.ray
def test_an_eval_of_a_file_of_which_nothing_can_be_read_is_exit_code_3(capsys, tmp_path, local_ray):
    refused(capsys, tmp_path, "eval")


def refused(capsys, tmp_path, command):
    file, store = tmp_path / "own.jsonl", tmp_path / "s"
    file.write_text(OWN_LINES)
    words = [file] if command == "ingest" else [FAKES, "--data", file]
    code, out, err = run(capsys, command, *words, "--store", store)
    assert code == 3 and not out
    assert f"{file}: none of 4 lines could be read:" in err and "docs/formats.md" in err
    assert f"{file}:2: missing field: interaction_id: expected text, found no such field" in err
    assert f"{file}:3: missing field: search_results[0].page_url: expected text, found no such field" in err
    assert f"{file}:4: wrong type: answer: expected text or a number, found a list" in err
    found = Store.find(str(store))  # a plan makes none
    assert found is None or [found.count(t) for t in ("sources", "questions", "faults")] == [0, 0, 0]


def test_a_file_without_a_line_is_exit_code_3(capsys, tmp_path):
    file = tmp_path / "empty.jsonl"
    file.write_text("\n\n")
    code, _, err = run(capsys, "ingest", file, "--store", tmp_path / "s")
    assert code == 3 and "empty.jsonl: expected questions or documents, found no lines" in err


@pytest.mark.parametrize("words", ["plan", "eval", "eval --until index", "eval --until answer"])
def test_a_store_without_questions_is_exit_code_3_and_no_table_of_zeros(capsys, tmp_path, words):
    store, (command, *flags) = Store.create(str(tmp_path / "s")), words.split()
    code, out, err = run(capsys, command, FAKES, *flags, "--store", store.uri)
    assert code == 3 and not out
    nothing = "nothing to search in {0}: `raypipe ingest DIR", "{0}: no questions. `raypipe ingest PATH`"
    assert nothing["index" not in flags].format(store.uri) in err


def test_the_line_of_each_format_in_the_docs_can_be_read(capsys, tmp_path):
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    (\{.*\})$", text.split("## Data")[1].split("\n## ")[0], re.MULTILINE)
    files = {
        "q.jsonl": lines[0],
        "corpus.jsonl": next(x for x in lines if '"_id": "d1"' in x),
        "queries.jsonl": next(x for x in lines if '"_id": "q1"' in x),
        "own.jsonl": next(x for x in lines if "ctxs" in x),
        "pages.jsonl": next(x for x in lines if "fetched_at" in x),
    }
    for name, line in files.items():
        (tmp_path / name).write_text(line)
    beir = [tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl", "--format", "beir"]
    for words in ([tmp_path / "q.jsonl"], beir, [tmp_path / "own.jsonl"]):
        code, out, err = run(capsys, "ingest", *words, "--store", tmp_path / "s", "--json")
        assert code == 0 and json.loads(out)["questions"] == 1 and json.loads(out)["faults"] == 0, err
    code, out, err = run(capsys, "ingest", tmp_path / "pages.jsonl", "--store", tmp_path / "s", "--json")
    assert (
        code == 0 and json.loads(out)["faults"] == 0 and Store.open(str(tmp_path / "s")).count("layouts") == 1
    ), err


def test_doctor_says_what_mends_what_is_missing(capsys, tmp_path):
    code, out, _ = run(capsys, "doctor", "--json")
    said = json.loads(out)
    assert code == 0 and said["fine"]
    found = {(f["what"], f["state"]) for f in said["findings"]}
    assert ("ray", "fine") in found and ("model", "fine") in found
    assert ("store", "note") in found and ("model", "note") in found  # large models are not here
    assert all(f["mend"] for f in said["findings"] if f["what"] == "model" and f["state"] == "note")


def test_a_folder_that_no_eval_wrote_is_refused_in_a_sentence(capsys, tmp_path):
    for words in (("inspect", tmp_path, "q"), ("inspect", tmp_path, "--faults"), ("promote", tmp_path)):
        code, _, err = run(capsys, *words)
        assert code == 3 and "Errno" not in err
        assert f"{tmp_path}: expected the --out folder of a finished eval, found no run.json" in err


def test_a_plan_says_where_pools_run_where_they_have_work(capsys, ran, world, tmp_path):
    done = ("plan", FAKES, "--data", world, "--format", "crag", "--store", ran.folder / "store")
    assert "on laptop (" not in run(capsys, *done)[1], "there is nothing to compute"
    new = ("plan", FAKES, "--data", world, "--store", tmp_path / "s")
    assert "on laptop (" in run(capsys, *new)[1]


def test_the_bounds_of_a_score_are_said_without_a_flag_that_the_command_does_not_have(capsys, tmp_path):
    file = tmp_path / "p.jsonl"
    said = [("paris", "Paris"), ("oslo", "perhaps oslo")]
    file.write_text("\n".join(json.dumps({"query": "q", "answer": a, "prediction": p}) for a, p in said))
    code, out, _ = run(capsys, "score", "crag", file)
    assert code == 0 and "--judge" not in out
    assert "1 unscored: a judge has to decide, or they failed; the score of all 2 lies\n" in out
    assert "between +0.000 (all of them wrong) and +1.000 (all right)\n" in out


def test_options_of_an_eval_are_fields_of_its_record():
    from dataclasses import fields

    from raypipe.api.cli.runs import EvalFlags
    from raypipe.evaluation.options import EvalOptions

    assert {f.name for f in fields(EvalFlags)} <= {f.name for f in fields(EvalOptions)}


def test_the_core_has_at_most_thirty_commands():
    assert len(COMMANDS.own) <= 30


def test_the_memory_of_a_gateway_is_what_help_says_it_is():
    assert parser().parse_args(["serve"]).memo == MEMO_MB


def test_what_the_command_line_names_of_the_reports_is_there():
    for file in (Path(raypipe.__file__).parent / "api/cli").glob("*.py"):
        for module, name in re.findall(r'"(\w+)\.(print_\w+|show)"', file.read_text()):
            found = importlib.import_module(f"raypipe.evaluation.report.{module}")
            assert hasattr(found, name), f"{file.name}: {name}"


def test_a_terminal_of_ascii_shows_other_letters_by_their_numbers():
    code = "from raypipe.core.terminal import shown_streams as take\nwith take(): print('\u00fc')"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "\\xfc\n", done.stderr
