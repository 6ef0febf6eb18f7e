"""Arguments that mean the same in every command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from raypipe.cli.command import Argument, above_0, arg, at_least, one_of

RULES = one_of("official", "accuracy")


def measure(what: str) -> Argument:
    """`what` the measure is for."""
    first = "default: the one that reports of such data begin with"
    return arg("--measure NAME", f"{what}, such as f1 or ndcg_cut_10 ({first})")


def group(how: str) -> Argument:
    """`how` the questions of a group count."""
    return arg("--group LABEL", f"a label whose values are groups of questions that {how}")


def margin(what: str) -> Argument:
    """`what` is compared."""
    near = "whose 90 %% interval lies within M to either side are the same"
    return arg("--margin M", f"{what} {near} (default: 0.02)", above_0, 0.02)


def limit(verb: str) -> Argument:
    """`verb`: what is done with the questions."""
    return arg("--limit N", f"{verb} the first N questions only", at_least(1))


def data(about: str) -> Argument:
    """Files of questions, or none."""
    return arg("--data PATH+", about, default=[])


def _format(*more: str) -> tuple[Argument, Argument]:
    """`more`: names beyond those of data with questions."""
    folder = "files (a folder of txt, md, html, csv, pdf, docx), " if "files" in more else ""
    return arg(
        "--format FORMAT",
        "of the data: crag, beir, synth, qasper, oag (OAG-QA), warc (a crawl's pages), rows (questions or "
        "documents of your own: jsonl, json, csv, parquet, a folder of save_to_disk), "
        f"{folder}or MODULE:NAME of a reader of your own (default: by its looks)",
        one_of("crag", "beir", "synth", "qasper", "oag", "warc", "rows", *more),
    ), arg(
        "--fields ROLE=FIELD,...",
        "fields of rows that common names do not find: query=FIELD, answer=FIELD (or A+B, both), "
        "id=FIELD, documents=FIELD (texts, objects or paths to answer from), time, domain, question_type; of "
        "documents title, url, text, html, path. a.b is b inside a (may be repeated)",
        action=_Joined,
    )  # fmt: skip


class _Joined(argparse.Action):
    """Joins the values of a repeated option with commas."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        setattr(namespace, self.dest, ",".join(filter(None, (getattr(namespace, self.dest), values))))


def _recipe(about: str = "a name under conf/recipes, or a path", mark: str = "") -> tuple[Argument, ...]:
    """A recipe, and what its names stand for. `mark`: ? where it may be left out."""
    named = arg(f"recipe RECIPE{mark}", about + " (local)" * bool(mark), default="local" if mark else None)
    return named, _MODELS, _LLM, _GRAPH


_LIVE = "a name under conf/recipes, or a path; live: the released one"
_MODELS = arg(
    "--models FILE",
    "models file laid over conf/models.yaml: an entry of the same name replaces its entry whole",
)
_LLM = arg(
    "--llm URL#MODEL",
    "a model behind a server of the OpenAI protocol, in the place of the recipe's language models: "
    "http://127.0.0.1:8000/v1#MODEL; its key: $RAYPIPE_LLM_KEY",
)
_GRAPH = arg(
    "--graph [NAME=]WHERE ...",
    "where the recipe's graphs, public data and examples lie: folders, files or addresses; "
    "with no NAME all of them (default: as conf/graphs.yaml says, else the folder kg in the data)",
    dest="graphs",
)
_LABELS = arg("--labels FILE", "people's verdicts (labels.jsonl), which outrank the judge's")
SHARED: Mapping[str, tuple[Argument, ...]] = {
    "recipe": _recipe(),
    "recipe?": _recipe(mark="?"),
    "live": _recipe(_LIVE),
    "live?": _recipe(_LIVE, "?"),
    "models": (_MODELS,),
    "llm": (_LLM,),
    "graph": (_GRAPH,),
    "sets": (arg(
        "--set STEP[:INTO].FIELD=VALUE ...",
        "a field of a step in place of the recipe's, such as split.child_chars=500; may be repeated",
        dest="sets",
    ),),
    "format": _format(),
    "files": _format("files"),  # a folder of documents, which has no questions, is taken, too
    "kind": (arg(
        "--kind KIND",
        "which golds the data brings, and how it is scored: crag (CRAG's rules), qa (answers: exact "
        "match, F1), qasper (papers: F1 of answers and evidence), ranking (judged documents: nDCG, "
        "MAP), or MODULE:NAME (default: the format's)",
        one_of("crag", "qa", "qasper", "ranking"),
    ),),
    "store": (arg(
        "--store URI", "the store (default: $RAYPIPE_STORE, else stores/default under $RAYPIPE_HOME)"
    ),),
    "docs": (arg(
        "--docs DIR",
        "a folder of txt, md, html, csv, pdf and docx files: what changed in it is read and indexed "
        "first, in a store of its own unless --store names one",
    ),),
    "cluster": (arg(
        "--cluster NAME", "a name under conf/clusters, or a path (default: laptop)", default="laptop"
    ),),
    "fresh": (arg(
        "--fresh", "answer all questions, and ask language models again in place of using cached replies"
    ),),
    "scoring": (arg(
        "--rule RULE",
        "of scoring data of kind crag: official, accuracy, or MODULE:NAME of your own (official)",
        RULES,
    ), arg(
        "--judge MODEL",
        "decides what the rule leaves open: a generator of the models file, URL#MODEL of a server (its "
        "key: $RAYPIPE_JUDGE_KEY), or MODULE:NAME of a judge of your own",
    )),
    "caps": (
        arg("--max-calls N", "start no task after N calls to models and graphs", at_least(1)),
        arg("--max-usd X", "start no task after X US dollars of what has a price", above_0),
        arg("--max-hours H", "start no task after H hours of wall time", above_0),
    ),
    "retry": (arg("--retry-faults", "try rows again that failed permanently"),),
    "refresh": (arg(
        "--refresh", "recompute answers that rest on expired replies of a knowledge graph (graphs.yaml)"
    ),),
    "labels": (_LABELS,),
    "judged": (arg(
        "--trim TOKENIZER?",
        "cut answers to 75 tokens first, as CRAG's evaluator does (llama-2-tokens of the models file)",
        const="llama-2-tokens",
    ), _LABELS),  # what is done to predictions before they are scored
    "run": (arg("run DIR", "the --out folder of a finished eval"),),
    "json": (arg("--json", "print one JSON object on stdout and nothing else"),),
    "json-lines": (arg("--json", "print one JSON object a line on stdout and nothing else"),),
}  # fmt: skip
"""Name -> arguments."""
