"""The commands: name, group, help line, and the module that is imported when the command runs."""

from __future__ import annotations

from collections.abc import Mapping

from raypipe.core.plugins import Command, Registry

GROUPS: Mapping[str, str] = {
    "data": "make, fetch and read data",
    "run": "run a recipe over a store",
    "look": "see what ran, and how good it was",
    "release": "decide what answers live questions",
    "serve": "answer single questions",
    "tools": "this machine, models, graphs, files",
}
"""Group -> what its commands do, in the order of `raypipe --help`."""

_OWN = {
    ("data", "data"): {
        "download": "Download the official CRAG or QASPER files: resumable, checked by digest.",
        "ingest": "Read files into a store, each line once; the same bytes again change nothing.",
        "questions": "Make test questions from documents of your own, for a person to review.",
        "examples": "Write a pool of training questions that prompts show as examples.",
        "parse": "Convert HTML files to text, as the pipeline does.",
    },
    ("run", "runs"): {
        "plan": "Estimate the model calls, time and memory of an eval, with the reason for each.",
        "eval": "Run what is missing, score it, and write a report; without arguments, the demo.",
        "rank": "Rank documents for queries and write a TREC run.",
        "sweep": "Evaluate recipes, or one at several values of its fields, and compare them in one table.",
        "fit": "Fit numbers of a recipe to one half of a run, and report on the other half.",
    },
    ("look", "look"): {
        "inspect": "Show a finished eval, one of its rows, failed rows, or where wrong answers were lost.",
        "view": "Show runs in a browser: each question with its evidence; two runs side by side.",
        "export": "Write a run's results as predictions, a CRAG submission or a TREC run.",
        "reproduce": "Hold a run against its expected numbers: OK, OKish or FAIL.",
    },
    ("look", "scores"): {
        "compare": "Compare scored runs over the same questions: better, worse, same, or cannot tell.",
        "judge": "Measure a judge by people's labels, and pick answers for people to label.",
        "score": "Score predictions or rankings of any system.",
    },
    ("release", "look"): {
        "promote": "Make a finished run the live release, if it passes the gates.",
        "rollback": "Make the release before the live one live again.",
        "releases": "List the releases of a store.",
        "prune": "Delete tables and replies that nothing references.",
        "forget": "Take pages, documents or questions out of a store and its runs, for good.",
    },
    ("serve", "serve"): {
        "ask": "Answer one question, from the store or from pages in a file.",
        "serve": "Answer questions over HTTP on this machine.",
    },
    ("tools", "tools"): {
        "doctor": "Check what is installed and reachable, and print the command that mends the rest.",
        "init": "Write the files of a project of your own: recipe, prompt, models, cluster, step, test.",
        "check": "Find every problem of recipes, other configuration files, and steps of your own.",
        "models": "List a recipe's models: where they are, how to get what is missing; add or adopt one.",
        "bench": "Measure speed next to other libraries, row by row; needs a checkout.",
        "completion": "Print the completion script of a shell.",
    },
}
"""Group and module -> its commands: name -> what it does. Plugins add others."""

COMMANDS: Registry[Command] = Registry(
    "commands",
    {
        name: Command(group, f"raypipe.api.cli.{module}", about)
        for (group, module), abouts in _OWN.items()
        for name, about in abouts.items()
    },
    "a command",
)
