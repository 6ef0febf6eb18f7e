"""What `local` says without a language model: right, wrong or nothing, next to the same step of another tree.

    python bench/figures/extract.py --against TREE    tables of before and after; needs RAYPIPE_DATA
    python bench/figures/extract.py --fit             fits conf/fitted/local-extract.yaml again first
    python bench/figures/extract.py --sentences       counts sentences of passages, for `Extract.sentences`

TREE is a checkout of the commit to compare with (`git worktree add TREE 33b2759`). Both answer the same
questions from the same five passages, in one run, and the differences are paired:

- an invented world of another seed than the one fitted on, and the demo;
- the half of Natural Questions and of SQuAD (XQuAD's English part) that the fit has not seen; all of their
  passages are searched;
- ten real CRAG questions. Their pages hold the answer to one of them;
- "unanswered": the questions of all sets but the last once more, over the same texts without those that hold
  a gold. Whatever is said is wrong. The fit has such rows, too.

Strict: a reply holds a gold (lower case, without punctuation and articles, one spelling for dates), has at
most 45 words, and is the gold where the question offers a choice. Score: right less wrong, per question.
Lenient: a reply holds a gold, at any length. Vectors and scores are cached in one file, so a second run
takes a minute.
Exits with 7 where a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import extract_fit
import numpy as np
from extract_replies import EMBEDDER, MAXSIM, kit_of, models, replies
from extract_sets import (
    CRAG,
    FALSE,
    SYNTH,
    Case,
    QuestionSet,
    asked_of,
    crag,
    demo,
    digests,
    halves,
    holds,
    nq,
    plain,
    squad,
    strictly,
    synth,
)  # fmt: skip
from rich.console import Console
from rich.table import Table

from raypipe.core import config
from raypipe.core.errors import RaypipeError
from raypipe.metrics.certainty import paired, rate_interval
from raypipe.steps.extract import Extract
from raypipe.text.candidates import SourceText, candidates
from raypipe.text.evidence import Fitted
from raypipe.text.fitted_on import FittedOn, seen_rows

ROOT = Path(__file__).parents[2]
FITTED = ROOT / "conf" / "fitted" / "local-extract.yaml"
FIT_SEED, FIT_QUESTIONS, SEED, QUESTIONS = 3, 60, 7, 200
MOST = 120  # questions of each half of NQ and of SQuAD, spread over it
WEIGHTS = {"NQ": 1.0, "SQuAD": 1.0, "synth": 2.0}
"""Of a question in the fit. Those of the invented world are a tenth of the rows, and the only ones with
prices, tables and false premises."""
UNANSWERED = 0.25
"""Weight of a question in the fit once more, without the texts that answer it. Of 0, .1, .25, .5 and 1 the
one with the most score on what is fitted and has an answer (sum of three sets: 1.21, and 1.18 without)."""
TARGETS = {"synth": 0.50, "NQ": 0.10}  # strict score, at least
SAID = 0.30  # of questions that no text answers, at most
RIGHT = 0.80  # of what is answered on synth, strictly
CHARS = 260  # of 95 % of the answers


@dataclass(frozen=True, slots=True)
class Verdict:
    """One reply against its golds."""

    answered: bool
    strict: bool
    lenient: bool
    words: int
    chars: int
    crosses: bool  # its quote lies in more than one block, or in a menu

    @property
    def score(self) -> int:
        return (1 if self.strict else -1) if self.answered else 0


def verdict(case: Case, reply: dict[str, Any], pages: dict[str, Any]) -> Verdict:
    answered, text = reply["label"] == "answered", reply["text"]
    golds = () if any(plain(g) == plain(FALSE) for g in case.golds) else case.golds
    crosses = False
    for source, start, end in reply["quotes"] if answered else ():
        blocks = pages[source].blocks
        inside = [b for b in blocks if b.start < end and start < b.end]
        crosses |= len(inside) > 1 or any(b.kind == "menu" for b in inside)
    strict = answered and strictly(asked_of(case), text, golds)
    return Verdict(answered, strict, answered and holds(text, golds), len(text.split()), len(text), crosses)


def table_of(title: str) -> Table:
    table = Table(title=title)
    for name in ("set", "", "score, strict", "score, lenient", "answered", "right when answered", "words",
                 "95th chars", "crosses", "false premises answered"):  # fmt: skip
        table.add_column(name)
    return table


def add(table: Table, name: str, when: str, cases: Sequence[Case], said: Sequence[Verdict]) -> None:
    answered = [v for v in said if v.answered]
    n = len(answered)
    right = sum(v.strict for v in answered)
    low, high = rate_interval(right, n) if n else (0.0, 1.0)
    false = [v for c, v in zip(cases, said, strict=True) if any(plain(g) == plain(FALSE) for g in c.golds)]
    lenient = np.mean([(1 if v.lenient else -1) if v.answered else 0 for v in said])
    table.add_row(
        f"{name} ({len(cases)})", when, f"{np.mean([v.score for v in said]):+.3f}", f"{lenient:+.3f}",
        f"{n / len(said):.2f}", f"{right / n:.3f} [{low:.2f}, {high:.2f}]" if n else "-",
        f"{np.mean([v.words for v in answered]):.1f}" if n else "-",
        f"{np.percentile([v.chars for v in answered], 95):.0f}" if n else "-",
        str(sum(v.crosses for v in answered)), f"{sum(v.answered for v in false)} of {len(false)}",
    )  # fmt: skip


def difference(name: str, before: Sequence[Verdict], after: Sequence[Verdict]) -> str:
    d = paired([v.score for v in before], [v.score for v in after], 2)
    low, high = d.interval or (float("nan"), float("nan"))
    return (
        f"{name}: strict {d.difference:+.3f} [{low:+.2f}, {high:+.2f}], p {d.p:.4f}, {d.up} up, {d.down} down"
    )


def of_tree(tree: Path, asked: QuestionSet, memo: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """The replies of a tree's step, from a process that imports that tree."""
    with tempfile.TemporaryDirectory() as folder:
        cases, out = Path(folder) / "cases.json", Path(folder) / "out.json"
        cases.write_text(json.dumps(asked.to_json()), encoding="utf-8")
        command = [sys.executable, str(Path(__file__).with_name("extract_replies.py")), "--cases", str(cases)]
        command += ["--conf", str(tree / "conf"), "--memo", str(memo), "--out", str(out)]
        command += ["--embedder", names[0], "--maxsim", names[1]]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tree / "src")}, check=True)
        found: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def test_sets(data: Path, names: Sequence[str]) -> list[QuestionSet]:
    makers: dict[str, Callable[[], QuestionSet]] = {
        "synth": lambda: synth("synth", QUESTIONS, SYNTH["pages"], SEED, SYNTH["page_chars"]),
        "demo": demo,
        "NQ": lambda: _nq(data)[1],
        "SQuAD": lambda: _squad(data)[1],
        "CRAG": lambda: crag("CRAG", [data / CRAG]),
    }
    sets = [make() for name, make in makers.items() if name in names]
    return [s for some in sets for s in ([some] if some.name == "CRAG" else [some, some.unanswered()])]


def _nq(data: Path) -> list[QuestionSet]:
    whole = nq(data)
    return [h.first(MOST) for h in halves(whole, [i % 2 == 1 for i in range(len(whole.cases))])]


def _squad(data: Path) -> list[QuestionSet]:
    whole, articles = squad(data)
    return [h.first(MOST) for h in halves(whole, [a % 2 == 1 for a in articles])]


async def refit(data: Path, step: Extract, memo: Path, console: Console) -> None:
    made = synth("synth", FIT_QUESTIONS, SYNTH["pages"], FIT_SEED, SYNTH["page_chars"])
    rows, asked = [], list[str]()
    for some in (made, _squad(data)[0], _nq(data)[0]):
        kit = kit_of({"pages": {}}, memo)
        weight, other = WEIGHTS[some.name], some.unanswered()
        rows += await extract_fit.scored(some.cases, some.pages, step, kit, weight)
        rows += await extract_fit.scored(other.cases, other.pages, step, kit, weight * UNANSWERED)
        asked += [c.text for c in some.cases]
        console.print(f"{some.name}: {len(some.cases)} questions")
    on = FittedOn(
        data=f"{digests(data)}, synth seed {FIT_SEED} {FIT_QUESTIONS} questions",
        split=f"{MOST} of NQ's even rows, {MOST} of SQuAD's even articles, all of synth; each once more, "
        f"with weight {UNANSWERED:g}, without the texts that hold a gold",
        metric="softmax over sentences that hold an answer; log loss of: the best, or its span, does",
        n=len(asked),
        seen=seen_rows(asked),
    )
    extract_fit.write(extract_fit.fit(rows, step, on), FITTED)
    console.print(f"wrote conf/fitted/{FITTED.name}")


async def run(args: argparse.Namespace, data: Path, console: Console) -> int:
    embedder, maxsim = models(ROOT / "conf", args.embedder, args.maxsim)
    if args.fit:
        await refit(data, Extract(embedder=embedder, maxsim=maxsim), args.memo, console)
    fitted = config.build(Fitted, config.read_yaml(FITTED), config.Where(str(FITTED)))
    step = Extract(embedder=embedder, maxsim=maxsim, fitted=fitted)
    missed: list[str] = []
    dump: dict[str, Any] = {}
    for asked in test_sets(data, args.sets.split(",")):
        tree, table = asked.to_json(), table_of("passages found")
        now = await replies(tree, step, kit_of(tree, args.memo))
        after = [verdict(c, r, asked.pages) for c, r in zip(asked.cases, now, strict=True)]
        old: list[dict[str, Any]] = [{}] * len(now)
        if args.against:
            old = of_tree(args.against, asked, args.memo, (args.embedder, args.maxsim))
            before = [verdict(c, r, asked.pages) for c, r in zip(asked.cases, old, strict=True)]
            add(table, asked.name, "before", asked.cases, before)
        add(table, asked.name, "after", asked.cases, after)
        console.print(table)
        if args.against:
            console.print(difference(asked.name, before, after))
        missed += misses(asked.name, after)
        dump[asked.name] = [
            {"question": c.text, "golds": c.golds, **r, "score": v.score, "before": o,
             "quoted": [asked.pages[s].text[a:b] for s, a, b in r["quotes"]]}
            for c, r, o, v in zip(asked.cases, now, old, after, strict=True)
        ]  # fmt: skip
        if args.out:
            args.out.write_text(json.dumps(dump, indent=1, ensure_ascii=False), encoding="utf-8")
    for line in missed:
        console.print(line)
    return 7 if missed else 0


def misses(name: str, said: Sequence[Verdict]) -> list[str]:
    """The targets that a set misses."""
    answered = [v for v in said if v.answered]
    found: dict[str, Any] = {
        f"score at least {t}": np.mean([v.score for v in said]) >= t for n, t in TARGETS.items() if n == name
    }
    if name.endswith("unanswered"):
        return [] if len(answered) <= SAID * len(said) else [f"missed: {name}: at most {SAID} answered"]
    if answered:
        if name == "synth":
            found[f"right when answered at least {RIGHT}"] = np.mean([v.strict for v in answered]) >= RIGHT
        found[f"95 % under {CHARS} characters"] = np.percentile([v.chars for v in answered], 95) < CHARS
        found["no menu, no border crossed"] = not any(v.crosses for v in answered)
    return [f"missed: {name}: {target}" for target, met in found.items() if not met]


def count_sentences(data: Path, console: Console) -> int:
    """A table of sentences per passage. 7 where the default of `Extract.sentences` would leave one out."""
    table = Table(title="passages of 700 characters")
    for name in ("", "passages", "mean", "50th", "95th", "99th", "most"):
        table.add_column(name)
    most = 0
    for asked in (nq(data), squad(data)[0], crag("CRAG", [data / CRAG]), demo()):
        counts = []
        for chunk in dict.fromkeys(c for case in asked.cases for c in case.order):
            source, _, span = chunk.rpartition(":")
            page = asked.pages[source]
            start, end = map(int, span.split("-"))
            counts.append(
                len(candidates([(source, (start, end))], {source: SourceText(page.text, page.blocks)}))
            )
        cells = [f"{np.mean(counts):.1f}", *(f"{np.percentile(counts, p):.0f}" for p in (50, 95, 99, 100))]
        table.add_row(asked.name, str(len(counts)), *cells)
        most = max(most, *counts)
    console.print(table)
    read: int = inspect.signature(Extract).parameters["sentences"].default
    return 0 if most <= read else 7


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    home = Path(os.environ.get("RAYPIPE_HOME", "~/.cache/raypipe")).expanduser()
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout, to compare with")
    parser.add_argument("--fit", action="store_true", help="fit conf/fitted/local-extract.yaml again first")
    parser.add_argument("--sentences", action="store_true", help="only count the sentences of passages")
    parser.add_argument("--sets", default="synth,demo,NQ,SQuAD,CRAG", help="which of them, default all")
    parser.add_argument("--embedder", default=EMBEDDER, help="its name in models.yaml")
    parser.add_argument("--maxsim", default=MAXSIM, help="the reranker's name there")
    parser.add_argument("--memo", type=Path, default=home / "bench" / "extract.sqlite", help="cached vectors")
    parser.add_argument("--out", type=Path, help="a file for every reply, as JSON")
    args = parser.parse_args()
    console = Console(width=140)
    data = os.environ.get("RAYPIPE_DATA")
    if not data:
        console.print("RAYPIPE_DATA is not set: it must name the folder that has openqa/, squad/ and crag/")
        return 3
    if args.sentences:
        return count_sentences(Path(data), console)
    try:
        return asyncio.run(run(args, Path(data), console))
    except RaypipeError as e:
        console.print(str(e))
        return e.exit_code


if __name__ == "__main__":
    sys.exit(main())
