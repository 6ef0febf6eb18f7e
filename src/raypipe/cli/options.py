"""Arguments that mean the same in every command, and how a command is declared."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raypipe.api.settings import Settings
from raypipe.cli.commands import COMMANDS
from raypipe.core.config import did_you_mean
from raypipe.core.plugins import is_path

if TYPE_CHECKING:
    from rich.console import Console

    from raypipe.api.session import Session

Commands = Any  # argparse's own class for sub-commands is private
Run = Callable[[argparse.Namespace, Settings], int]


def command(
    commands: Commands, name: str, example: str, run: Run, about: str = ""
) -> argparse.ArgumentParser:
    """Declares one command with an example to copy; `about` for those that are not in COMMANDS."""
    about = about or COMMANDS[name].about
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(run=run, parser=made)
    return made


def parent(commands: Commands, name: str, dest: str, about: str = "") -> Commands:
    """Declares a command of further commands, such as `score`."""
    about = about or COMMANDS[name].about
    made = commands.add_parser(name, help=about, description=about)
    return made.add_subparsers(dest=dest, metavar="COMMAND", required=True)


def console() -> Console:
    """The console on stdout. Lines that are piped are not folded; on a terminal they fit its width."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)


PIPED_WIDTH = 10_000  # columns: no line of a table is as long


def session(args: argparse.Namespace, settings: Settings, progress: bool = False) -> Session:
    """The session that the arguments of a command say."""
    from raypipe.api.session import Session

    return Session(
        settings,
        getattr(args, "models", None),
        graphs(args),
        getattr(args, "cluster", "laptop"),
        progress,
        getattr(args, "llm", None),
        tuple(getattr(args, "sets", ())),
    )


def graphs(args: argparse.Namespace) -> dict[str, str]:
    """Graph -> place, as --graph says it; "": all others."""
    found: dict[str, str] = {}
    for given in getattr(args, "graphs", []):
        name, sign, place = given.partition("=")
        found[name if sign and "/" not in name else ""] = place if sign and "/" not in name else given
    return found


def store(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--store",
        metavar="URI",
        help="the store (default: $RAYPIPE_STORE, else stores/default under $RAYPIPE_HOME)",
    )


def docs(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--docs",
        metavar="DIR",
        help="a folder of txt, md, html, csv, pdf and docx files: what changed in it is read and indexed "
        "first, in a store of its own unless --store names one",
    )


def say_data(args: argparse.Namespace, settings: Settings) -> None:
    """Says on stderr which questions are taken where --data is missing."""
    if not args.data:
        print(f"no --data: the questions in {settings.store_to_use(args.store)}", file=sys.stderr)


def recipe(made: argparse.ArgumentParser, optional: bool = False, live: bool = False) -> None:
    about = "a name under conf/recipes, or a path"
    if live:
        about += "; live: the released one"
    if optional:
        made.add_argument("recipe", metavar="RECIPE", nargs="?", default="local", help=f"{about} (local)")
    else:
        made.add_argument("recipe", metavar="RECIPE", help=about)
    models(made)
    llm(made)
    graph(made)


def graph(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--graph",
        dest="graphs",
        metavar="[NAME=]WHERE",
        action="append",
        default=[],
        help="where the recipe's graphs, public data and examples lie: folders, files or addresses; "
        "with no NAME all of them (default: as conf/graphs.yaml says, else the folder kg in the data)",
    )


def sets(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--set",
        dest="sets",
        metavar="STEP[:INTO].FIELD=VALUE",
        action="append",
        default=[],
        help="a field of a step in place of the recipe's, such as split.child_chars=500; may be repeated",
    )


def models(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--models",
        metavar="FILE",
        help="models file laid over conf/models.yaml: an entry of the same name replaces its entry whole",
    )


def llm(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--llm",
        metavar="URL#MODEL",
        help="a model behind a server of the OpenAI protocol, in the place of the recipe's language models: "
        "http://127.0.0.1:8000/v1#MODEL; its key: $RAYPIPE_LLM_KEY",
    )


def cluster(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--cluster",
        metavar="NAME",
        default="laptop",
        help="a name under conf/clusters, or a path (default: laptop)",
    )


def fresh(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--fresh",
        action="store_true",
        help="answer all questions, and ask language models again in place of using cached replies",
    )


def scoring(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--rule",
        type=one_of("official", "accuracy"),
        help="of scoring data of kind crag: official, accuracy, or MODULE:NAME of your own (official)",
    )
    made.add_argument(
        "--judge",
        metavar="MODEL",
        help="decides what the rule leaves open: a generator of the models file, URL#MODEL of a server (its "
        "key: $RAYPIPE_JUDGE_KEY), or MODULE:NAME of a judge of your own",
    )


def caps(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--max-calls", metavar="N", type=at_least(1), help="start no task after N calls to models and graphs"
    )
    made.add_argument(
        "--max-usd", metavar="X", type=above_0, help="start no task after X US dollars of what has a price"
    )
    made.add_argument(
        "--max-hours", metavar="H", type=above_0, help="start no task after H hours of wall time"
    )


def retry(made: argparse.ArgumentParser) -> None:
    made.add_argument("--retry-faults", action="store_true", help="try rows again that failed permanently")


def refresh(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--refresh",
        action="store_true",
        help="recompute answers that rest on expired replies of a knowledge graph (graphs.yaml)",
    )


def judged(made: argparse.ArgumentParser) -> None:
    """What is done to predictions before they are scored."""
    made.add_argument(
        "--trim",
        metavar="TOKENIZER",
        nargs="?",
        const="llama-2-tokens",
        help="cut answers to 75 tokens first, as CRAG's evaluator does (llama-2-tokens of the models file)",
    )
    labels(made)


def labels(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--labels", metavar="FILE", help="people's verdicts (labels.jsonl), which outrank the judge's"
    )


def measure(made: argparse.ArgumentParser, what: str) -> None:
    """`what` the measure is for."""
    made.add_argument(
        "--measure",
        metavar="NAME",
        help=f"{what}, such as f1 or ndcg_cut_10 (default: the one that reports of such data begin with)",
    )


def group(made: argparse.ArgumentParser, how: str) -> None:
    """`how` the questions of a group count."""
    made.add_argument(
        "--group", metavar="LABEL", help=f"a label whose values are groups of questions that {how}"
    )


def margin(made: argparse.ArgumentParser, what: str) -> None:
    """`what` is compared."""
    made.add_argument(
        "--margin",
        type=above_0,
        default=0.02,
        metavar="M",
        help=f"{what} whose 90 %% interval lies within M to either side are the same (default: 0.02)",
    )


def format_of(made: argparse.ArgumentParser, files: bool = False) -> None:
    """`files`: whether a folder of documents, which has no questions, is taken."""
    more = ("files",) if files else ()
    documents = "files (a folder of txt, md, html, csv, pdf, docx), " if files else ""
    made.add_argument(
        "--format",
        type=one_of("crag", "beir", "synth", "qasper", "oag", "warc", "rows", *more),
        help="of the data: crag, beir, synth, qasper, oag (OAG-QA), warc (a crawl's pages), rows (questions "
        "or documents of your own: jsonl, json, csv, parquet, a folder of save_to_disk), "
        f"{documents}or MODULE:NAME of a reader of your own (default: by its looks)",
    )
    made.add_argument(
        "--fields",
        metavar="ROLE=FIELD,...",
        help="fields of rows that common names do not find: query=FIELD, answer=FIELD (or A+B, both), "
        "id=FIELD, documents=FIELD (texts, objects or paths to answer from), time, domain, question_type; of "
        "documents title, url, text, html, path. a.b is b inside a",
    )


def kind_of(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--kind",
        type=one_of("crag", "qa", "qasper", "ranking"),
        help="which golds the data brings, and how it is scored: crag (CRAG's rules), qa (answers: exact "
        "match, F1), qasper (papers: F1 of answers and evidence), ranking (judged documents: nDCG, MAP), or "
        "MODULE:NAME (default: the format's)",
    )


def one_of(*shipped: str) -> Callable[[str], str]:
    """An argument type: one of these names, or the path of code from outside, MODULE:NAME."""

    def read(text: str) -> str:
        if text in shipped or is_path(text):
            return text
        hint = did_you_mean(text, shipped)
        raise argparse.ArgumentTypeError(f"unknown value {text!r}; {hint}, or MODULE:NAME of your own")

    return read


def at_least(least: int) -> Callable[[str], int]:
    """An argument type: a whole number that is not smaller."""

    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, found {value}")
        return value

    read.__name__ = "whole number"
    return read


def above_0(text: str) -> float:
    """An argument type: a number above 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text}")
    return value


def share(text: str) -> float:
    """An argument type: a share above 0 and at most 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0 and at most 1, found {text}")
    return value


def between(least: int, most: int) -> Callable[[str], int]:
    """An argument type: a whole number from `least` to `most`."""

    def read(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected {least} to {most}, found {value}")
        return value

    read.__name__ = "whole number"
    return read


def as_json(made: argparse.ArgumentParser, lines: bool = False) -> None:
    what = "one JSON object a line" if lines else "one JSON object"
    made.add_argument("--json", action="store_true", help=f"print {what} on stdout and nothing else")


def print_json(value: Any) -> None:
    """One line on stdout. NaN and infinity are refused: they are not JSON."""
    json.dump(value, sys.stdout, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()
