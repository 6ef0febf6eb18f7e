"""Arguments: types of what stands on the command line, and arguments that mean the same in every command."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from raypipe.core.config import did_you_mean
from raypipe.core.plugins import is_path, registered

T = TypeVar("T")


def one_of(*shipped: str, kind: str | None = None) -> Callable[[str], str]:
    """An argument type: one of these names, or of those that plugins add to a kind (a field of PluginTable),
    or the path of code from outside, MODULE:NAME."""

    def read(text: str) -> str:
        if text in shipped or is_path(text):
            return text
        added = () if kind is None else registered(kind)
        if text in added:
            return text
        hint = did_you_mean(text, [*shipped, *added])
        raise argparse.ArgumentTypeError(f"unknown value {text!r}; {hint}, or MODULE:NAME of your own")

    return read


def _number(kind: type[T], fits: Callable[[T], bool], said: str, name: str) -> Callable[[str], T]:
    """An argument type: numbers of a kind that fit. `name`: as argparse calls one that cannot be read."""

    def read(text: str) -> T:
        value = kind(text)  # type: ignore[call-arg]
        if not fits(value):
            raise argparse.ArgumentTypeError(f"expected {said}, found {text.strip()}")
        return value

    read.__name__ = name
    return read


def names(text: str) -> list[str]:
    """An argument type: names with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


FORMATS = ("crag", "beir", "qasper", "oag", "warc", "rows")
NAMED: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": _number(float, math.isfinite, "a finite number", "float"),
    "path": Path,
    "names": names,
    "above_0": _number(float, lambda x: 0 < x < math.inf, "a number above 0", "above_0"),
    "share": _number(float, lambda x: 0 < x <= 1, "a share above 0 and at most 1", "share"),
    "share_or_0": _number(float, lambda x: 0 <= x <= 1, "a share from 0 to 1", "share from 0 to 1"),
    "rule": one_of("official", "accuracy", "words"),
    "kind": one_of("crag", "qa", "qasper", "ranking"),
    "format": one_of(*FORMATS, kind="readers"),
    "format_or_files": one_of(*FORMATS, "files", kind="readers"),
}


def read_as(name: str) -> Callable[[str], Any]:
    """The argument type of a name: one of NAMED, or whole numbers: `1..` from 1, `0..9` from 0 to 9."""
    if name in NAMED:
        return NAMED[name]
    least, most = (int(n) if n else None for n in name.split(".."))
    assert least is not None
    if most is None:
        return _number(int, lambda n: n >= least, f"at least {least}", "whole number")
    return _number(int, lambda n: least <= n <= most, f"{least} to {most}", "whole number")


_NAMES = "models llm graph"  # what the names in a recipe stand for
_LIVE = "a name under conf/recipes, or a path; live: the released one"
_FORMAT = """
    --format FORMAT {%s}: of the data: crag, beir, synth, qasper, oag (OAG-QA), warc (a crawl's pages), rows
      (questions or documents of your own: jsonl, json, csv or parquet), %sor
      MODULE:NAME of a reader of your own (default: by its looks)
    --fields ROLE=FIELD,...: fields of rows that common names do not find: query=FIELD, answer=FIELD (or A+B,
      both), id=FIELD, documents=FIELD (texts, objects or paths to answer from), time, domain, question_type;
      of documents title, url, text, html, path. a.b is b inside a
    """
SHARED: Mapping[str, str] = {
    "recipe": f"recipe RECIPE: a name under conf/recipes, or a path\n{_NAMES}",
    "recipe?": f"recipe RECIPE? {{= local}}: a name under conf/recipes, or a path (local)\n{_NAMES}",
    "live": f"recipe RECIPE: {_LIVE}\n{_NAMES}",
    "live?": f"recipe RECIPE? {{= local}}: {_LIVE} (local)\n{_NAMES}",
    "models": """
    --models FILE: models file laid over conf/models.yaml: an entry of the same name replaces its entry whole
    """,
    "llm": """
    --llm MODEL: in the place of the recipe's language models: a generator of the models file, a folder, or
      URL#MODEL of a server of the OpenAI protocol: http://127.0.0.1:8000/v1#MODEL; its key: $RAYPIPE_LLM_KEY
    """,
    "graph": """
    --graph [NAME=]WHERE ... {-> graphs}: where the recipe's graphs, public data and examples lie: folders,
      files or addresses; with no NAME all of them (default: as conf/graphs.yaml says, else the folder kg in
      the data)
    """,
    "sets": """
    --set STEP[:INTO].FIELD=VALUE ... {-> sets}: a field of a step in place of the recipe's, such as
      split.child_chars=500; may be repeated
    """,
    "format": _FORMAT % ("format", ""),
    # A folder of documents, which has no questions, is taken, too.
    "files": _FORMAT % ("format_or_files", "files (a folder of txt, md, html, csv, pdf, docx), "),
    "kind": """
    --kind KIND {kind}: which golds the data brings, and how it is scored: crag (CRAG's rules), qa (answers:
      exact match, F1), qasper (papers: F1 of answers and evidence), ranking (judged documents: nDCG, MAP), or
      MODULE:NAME (default: the format's)
    """,
    "store": """
    --store URI: the store (default: $RAYPIPE_STORE, else stores/default under $RAYPIPE_HOME)
    --docs DIR: in its place a folder of txt, md, html, csv, pdf and docx files, which has a store of its own;
      what runs a recipe reads first what changed in it
    """,
    "cluster": "--cluster NAME {= laptop}: a name under conf/clusters, or a path (default: laptop)",
    "fresh": """
    --fresh: answer all questions, and ask language models again in place of using cached replies
    """,
    "scoring": """
    --rule RULE {rule}: of scoring data of kind crag: official, accuracy, words (a truth's words stand in the
      answer; no judge), or MODULE:NAME of your own (official)
    --judge MODEL: decides what the rule leaves open: a generator of the models file, a folder, URL#MODEL of
      a server (its key: $RAYPIPE_JUDGE_KEY), or MODULE:NAME of a judge of your own
    """,
    "caps": """
    --max-calls N {1..}: start no task after N calls to models and graphs
    --max-usd X {above_0}: start no task after X US dollars of what has a price
    --max-hours H {above_0}: start no task after H hours of wall time
    """,
    "retry": "--retry-faults: try rows again that failed permanently",
    "refresh": """
    --refresh: recompute answers that rest on expired replies of a knowledge graph (graphs.yaml)
    """,
    "labels": "--labels FILE: people's verdicts (labels.jsonl), which outrank the judge's",
    # Changes to predictions before they are scored.
    "judged": """
    --trim TOKENIZER? {const llama-2-tokens}: cut answers to 75 tokens first, as CRAG's evaluator does
      (llama-2-tokens of the models file)
    labels
    """,
    "of-eval": """
    sets
    --data PATH+: files to ingest first, or URIs of some
    format kind store cluster
    --limit N {1..}: run the first N questions only
    scoring labels
    --swap STEP=RECIPE ... {-> swaps}: take one step of another recipe in place of this recipe's own
    fresh caps
    --dry-run: check everything, print the plan, run nothing
    retry refresh
    --out DIR: folder for the report (default: $RAYPIPE_HOME/runs/STORE/RECIPE/TIME, one for each run)
    -v {-> verbose}: print the plan of each step, and all tables of the report
    json
    """,
    "of-fit": """
    run RUN: the --out folder of a finished eval
    --split 0|1 {0..1 = 0}: the half of the questions to fit on; the report is of the other (default: 0)
    --group LABEL: a label whose values are groups of questions that stay together
    --measure NAME: what is made best, such as f1 or ndcg_cut_10 (default: the one that reports of such data
      begin with)
    --out FILE: the fitted file to write, .yaml; its report goes next to it (default: in the folder of RUN)
    json
    """,
    "run": "run DIR: the --out folder of a finished eval",
    "json": "--json: print one JSON object on stdout and nothing else",
    "json-lines": "--json: print one JSON object a line on stdout and nothing else",
}
"""Name -> arguments, as `command.take` reads them."""
