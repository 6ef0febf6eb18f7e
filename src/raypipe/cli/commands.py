"""The commands: name, group, help line, and the module that is imported when the command runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GROUPS: Mapping[str, str] = {
    "data": "make, fetch and read data",
    "run": "run a recipe over a store",
    "look": "see what ran, and how good it was",
    "release": "decide what answers live questions",
    "serve": "answer single questions",
    "tools": "this machine, models, graphs, files",
}
"""Group -> what its commands do, in the order of `raypipe --help`."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    group: str
    module: str  # of raypipe.cli; its `add` declares this command, and others of the module
    about: str  # one line that begins with a verb


COMMANDS: Mapping[str, Command] = {
    "synth": Command(
        "data", "data", "Write a CRAG-format dataset about an invented world, with its knowledge graph."
    ),
    "download": Command(
        "data", "data", "Download the official CRAG or QASPER files: resumable, checked by digest."
    ),
    "ingest": Command(
        "data", "data", "Read files into a store, each line once; the same bytes again change nothing."
    ),
    "questions": Command(
        "data", "questions", "Make test questions from documents of your own, for a person to review."
    ),
    "examples": Command(
        "data", "examples", "Write a pool of training questions that prompts show as examples."
    ),
    "parse": Command("data", "data", "Convert HTML files to text, as the pipeline does."),
    "plan": Command(
        "run", "plans", "Estimate the model calls, time and memory of an eval, with the reason for each."
    ),
    "index": Command("run", "runs", "Parse, split and embed the sources that a recipe's tables lack."),
    "ann": Command(
        "run", "ann", "Build the approximate indexes that a recipe searches, and measure their recall."
    ),
    "answer": Command("run", "runs", "Answer the stored questions that have no answer yet."),
    "eval": Command(
        "run", "runs", "Run what is missing, score it, and write a report; without arguments, the demo."
    ),
    "reprocess": Command("run", "runs", "Recompute only what changed, and report which answers differ."),
    "sweep": Command(
        "run", "sweep", "Evaluate a recipe at several values of its fields, and compare them in one table."
    ),
    "fit": Command(
        "run", "fit", "Fit numbers of a recipe to one half of a run, and report on the other half."
    ),
    "labels": Command(
        "run", "labels", "Make training labels for a step: its answers, judged against golds by a model."
    ),
    "finetune": Command(
        "run", "finetune", "Train a LoRA adapter on labels, check that it acts, and keep it in the store."
    ),
    "rank": Command("run", "rank", "Rank documents for queries and write a TREC run."),
    "why": Command(
        "look",
        "look",
        "Explain one answer of a finished eval: its evidence, prompts and replies, what was reused and why.",
    ),
    "faults": Command(
        "look", "look", "List the rows of a finished eval that failed, why, and after how many attempts."
    ),
    "losses": Command(
        "look", "look", "Say for each wrong answer of a finished eval where its gold was lost."
    ),
    "compare": Command(
        "look", "compare", "Compare scored runs over the same questions: better, worse, same, or cannot tell."
    ),
    "view": Command(
        "look", "view", "Show runs in a browser: each question with its evidence; two runs side by side."
    ),
    "judge": Command(
        "look", "judge", "Measure a judge by people's labels, and pick answers for people to label."
    ),
    "export": Command(
        "look", "export", "Write a run's results as predictions, a CRAG submission or a TREC run."
    ),
    "reproduce": Command("look", "reproduce", "Hold a run against its expected numbers: OK, OKish or FAIL."),
    "score": Command("look", "scores", "Score predictions or rankings of any system."),
    "promote": Command(
        "release", "releases", "Make a finished run the live release, if it passes the gates."
    ),
    "rollback": Command("release", "releases", "Make the release before the live one live again."),
    "releases": Command("release", "releases", "List the releases of a store."),
    "trial": Command(
        "release", "trial", "Show how a canary or a shadow does against the live release, or stop it."
    ),
    "prune": Command("release", "releases", "Delete tables and replies that nothing references."),
    "forget": Command(
        "release", "forget", "Take a page, a document or a question out of a store and its runs, for good."
    ),
    "ask": Command("serve", "ask", "Answer one question, from the store or from pages in a file."),
    "serve": Command("serve", "serve", "Answer questions over HTTP on this machine."),
    "usage": Command("serve", "usage", "Print what each tenant asked of an endpoint, from its log."),
    "doctor": Command(
        "tools", "doctor", "Check what is installed and reachable, and print the command that mends the rest."
    ),
    "init": Command(
        "tools",
        "project",
        "Write the files of a project of your own: a recipe, its prompt, models, a cluster, a step, a test.",
    ),
    "check-step": Command(
        "tools", "steps", "Run the laws of steps on a step of your own, and compare it with its lock."
    ),
    "models": Command(
        "tools",
        "models",
        "List a recipe's models: where they are, how large, how to get what is missing; add one.",
    ),
    "kg": Command("tools", "kg", "Query a knowledge graph, serve one, and prepare examples of calls."),
    "facts": Command("tools", "facts", "Convert public data to tables of facts."),
    "validate": Command(
        "tools", "validate", "Find every problem of recipes and other configuration files, with its line."
    ),
    "schema": Command("tools", "schema", "Print the JSON Schemas of configuration files."),
    "bench": Command(
        "tools", "bench", "Measure speed next to other libraries, row by row; needs a checkout."
    ),
    "completion": Command("tools", "completion", "Print the completion script of a shell."),
}
