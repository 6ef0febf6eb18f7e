"""The commands: name, group, help line, and the module that is imported when the command runs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from raypipe.core.plugins import Command, Registry

TABLE = """
data: make, fetch and read data
  download (data): Download the official CRAG or QASPER files: resumable, checked by digest.
  ingest (data): Read files into a store, each line once; the same bytes again change nothing.
  questions (data): Make test questions from documents of your own, for a person to review.
  examples (data): Write a pool of training questions that prompts show as examples.
  parse (data): Convert HTML files to text, as the pipeline does.
run: run a recipe over a store
  plan (runs): Estimate the model calls, time and memory of an eval, with the reason for each.
  index (runs): Parse, split and embed the sources that a recipe's tables lack.
  ann (runs): Build the approximate indexes that a recipe searches, and measure their recall.
  answer (runs): Answer the stored questions that have no answer yet.
  eval (runs): Run what is missing, score it, and write a report; without arguments, the demo.
  reprocess (runs): Recompute only what changed, and report which answers differ.
  sweep (training): Evaluate a recipe at several values of its fields, and compare them in one table.
  fit (training): Fit numbers of a recipe to one half of a run, and report on the other half.
  rank (runs): Rank documents for queries and write a TREC run.
look: see what ran, and how good it was
  why (look): Explain one answer of a finished eval: its evidence, prompts and replies, what was reused and
    why.
  faults (look): List the rows of a finished eval that failed, why, and after how many attempts.
  losses (look): Say for each wrong answer of a finished eval where its gold was lost.
  compare (scores): Compare scored runs over the same questions: better, worse, same, or cannot tell.
  view (look): Show runs in a browser: each question with its evidence; two runs side by side.
  judge (scores): Measure a judge by people's labels, and pick answers for people to label.
  export (look): Write a run's results as predictions, a CRAG submission or a TREC run.
  reproduce (look): Hold a run against its expected numbers: OK, OKish or FAIL.
  score (scores): Score predictions or rankings of any system.
release: decide what answers live questions
  promote (releases): Make a finished run the live release, if it passes the gates.
  rollback (releases): Make the release before the live one live again.
  releases (releases): List the releases of a store.
  prune (releases): Delete tables and replies that nothing references.
  forget (releases): Take pages, documents or questions out of a store and its runs, for good.
serve: answer single questions
  ask (serve): Answer one question, from the store or from pages in a file.
  serve (serve): Answer questions over HTTP on this machine.
tools: this machine, models, graphs, files
  doctor (tools): Check what is installed and reachable, and print the command that mends the rest.
  init (tools): Write the files of a project of your own: a recipe, its prompt, models, a cluster, a step, a
    test.
  check-step (tools): Run the laws of steps on a step of your own, and compare it with its lock.
  models (tools): List a recipe's models: where they are, how large, how to get what is missing; add one.
  validate (tools): Find every problem of recipes and other configuration files, with its line.
  schema (tools): Print the JSON Schemas of configuration files.
  bench (tools): Measure speed next to other libraries, row by row; needs a checkout.
  completion (tools): Print the completion script of a shell.
"""
"""The groups, each with its commands: NAME (MODULE): help line. Plugins add others."""


def _commands() -> dict[str, Command]:
    found, group = dict[str, Command](), ""
    for line in re.sub(r"\n    +", " ", TABLE).strip().splitlines():
        head, _, about = line.partition(": ")
        if line.startswith(" "):
            name, module = head.split()
            found[name] = Command(group, f"raypipe.api.cli.{module.strip('()')}", about)
        else:
            group = head
    return found


GROUPS: Mapping[str, str] = dict(re.findall(r"(?m)^(\w+): (.+)$", TABLE))
"""Group -> what its commands do, in the order of `raypipe --help`."""
COMMANDS: Registry[Command] = Registry("commands", _commands(), "a command")
