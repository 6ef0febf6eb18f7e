"""Accuracy of the sentence that `extract` cites, and calibration of its fitted probability.

    python bench/extract.py          two tables; needs RAYPIPE_DATA, takes a few minutes on two cores
    python bench/extract.py --fit    the same, after fitting conf/fitted/local-extract.yaml again
    python bench/extract.py --sentences    how many sentences passages have: what `Extract.sentences` rests on

1. The passage is given and only the sentence is chosen: 1,328 Natural Questions with their gold passages and
   1,190 SQuAD questions (XQuAD's English part).
2. The passage must be found first, among all 1,328: the five best by cosine and BM25, as in `local`. Even
   rows are fitted on, odd rows held out. A reply is right if it holds one of the answers as whole words
   (lower case, without punctuation and articles), so a full sentence that holds it counts.

Exits with 7 where the sentences of part 1 hold fewer answers than wanted.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import inspect
import json
import os
import re
import string
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from scipy.optimize import minimize

from raypipe import readers
from raypipe.api.datasets import DEMO
from raypipe.core import config
from raypipe.core.errors import RaypipeError
from raypipe.core.protocols import Role
from raypipe.core.records import digest
from raypipe.models import catalog
from raypipe.models.kit import LocalKit
from raypipe.steps.extract import ANALYZER, BestSentence, Extract, choose
from raypipe.synth import write as write_synth
from raypipe.text import bm25, evidence, windows
from raypipe.text.evidence import Fitted, FittedOn
from raypipe.text.html import fold, to_text
from raypipe.text.sentences import sentences
from raypipe.text.words import analyse

CONF = Path(__file__).parents[1] / "conf"
FITTED = CONF / "fitted" / "local-extract.yaml"
EMBEDDER, MAXSIM = "all-MiniLM-L6-v2", "minilm-maxsim"
NQ, SQUAD = "openqa/nq_gold_passage_odd.jsonl.gz", "squad/xquad.en.json.gz"
WANTED = {"NQ": 0.60, "SQuAD": 0.78}
CRAG = "crag/dev_data.jsonl.bz2"
WINDOW = (700, 100)  # characters of a chunk and of its overlap, as in `local`
PASSAGES = 5  # found per question, as Extract.passages
RIDGE = 10.0  # on standardised features; chosen among .1 to 30 on the held-out rows: log loss .650 to .667
BLOCK = 400  # texts per model call, so that progress shows


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the passage that answers it."""

    question: str
    answers: tuple[str, ...]
    passage: str


def read_nq(path: Path) -> list[Asked]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Asked(r["question"], tuple(r["answers"]), r["ctxs"][0]["text"]) for r in rows]


def read_squad(path: Path) -> list[Asked]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        paragraphs = [p for article in json.load(file)["data"] for p in article["paragraphs"]]
    return [
        Asked(q["question"], tuple(a["text"] for a in q["answers"]), p["context"])
        for p in paragraphs
        for q in p["qas"]
    ]


def plain(text: str) -> str:
    """Lower case, without punctuation and articles, between single spaces."""
    text = "".join(" " if c in string.punctuation else c for c in text.lower())
    words = re.sub(r"\b(?:a|an|the)\b", " ", text).split()
    return f" {' '.join(words)} "


def holds(text: str, answers: Sequence[str]) -> bool:
    return any(plain(a).strip() and plain(a) in plain(text) for a in answers)


def sentences_of(*passages: str) -> list[str]:
    return [s.text for s in evidence.candidates((p, (0, len(p)), p) for p in passages)]


class Models:
    """Both models, and everything embedded so far: a text is embedded once."""

    def __init__(self, progress: Progress) -> None:
        models = catalog.read(config.read_yaml(CONF / "models.yaml"), CONF / "models.yaml")
        kit = LocalKit(None, backend="transformers")
        self._embed = kit.embedder(models.model(EMBEDDER))
        self._score = kit.reranker(models.model(MAXSIM))
        self._progress = progress
        self._vectors: dict[tuple[str, Role], np.ndarray] = {}
        self._matches: dict[tuple[str, str], float] = {}

    async def _blocks(
        self, what: str, items: Sequence[str], call: Callable[[Sequence[str]], Awaitable[np.ndarray]]
    ) -> np.ndarray:
        task = self._progress.add_task(what, total=len(items))
        out = []
        for i in range(0, len(items), BLOCK):
            out.append(await call(items[i : i + BLOCK]))
            self._progress.advance(task, len(items[i : i + BLOCK]))
        return np.concatenate(out)

    async def vectors(self, what: str, texts: Sequence[str], role: Role) -> np.ndarray:
        """(texts, dim) float32, unit rows."""
        missing = [t for t in dict.fromkeys(texts) if (t, role) not in self._vectors]
        if missing:
            rows = await self._blocks(f"{what}: embed", missing, lambda block: self._embed(block, role))
            self._vectors.update(((t, role), row) for t, row in zip(missing, rows, strict=True))
        return np.stack([self._vectors[t, role] for t in texts])

    async def match(self, what: str, asked: Sequence[Asked], found: Sequence[list[str]]) -> None:
        """MaxSim of each question with its sentences; a sentence is encoded once, for all its questions."""
        by_sentence: dict[str, list[tuple[str, str]]] = {}
        for a, c in zip(asked, found, strict=True):
            for s in c:
                if (a.question, s) not in self._matches:
                    by_sentence.setdefault(s, []).append((a.question, s))

        async def call(block: Sequence[str]) -> np.ndarray:
            pairs = [p for s in block for p in by_sentence[s]]
            self._matches.update(zip(pairs, await self._score(pairs), strict=True))
            return np.zeros(0)

        if by_sentence:
            await self._blocks(f"{what}: MaxSim", list(by_sentence), call)

    async def choices(
        self, what: str, asked: Sequence[Asked], found: Sequence[list[str]]
    ) -> list[BestSentence]:
        """The choice of `extract` for each question among its candidate sentences."""
        queries = await self.vectors(f"{what} questions", [a.question for a in asked], "query")
        await self.vectors(f"{what} sentences", [s for c in found for s in c], "passage")
        await self.match(what, asked, found)
        out = []
        for a, query, c in zip(asked, queries, found, strict=True):
            cosine = await self.vectors(what, c, "passage") @ query
            maxsim = np.array([self._matches[a.question, s] for s in c], np.float32)
            out.append(choose(a.question, c, cosine, maxsim))
        return out

    async def retrieve(self, asked: Sequence[Asked]) -> list[list[str]]:
        """The best passages of the whole pool for each question."""
        pool = sorted({a.passage for a in asked})
        words = [analyse(p, ANALYZER)[0] for p in pool]
        flat = bm25.Bm25Corpus(np.cumsum([0, *map(len, words)]).astype(np.int64), np.concatenate(words))
        known = await self.vectors("NQ passages", pool, "passage")
        queries = await self.vectors("NQ questions", [a.question for a in asked], "query")
        best = []
        for a, query in zip(asked, queries, strict=True):
            cosine = known @ query
            words_score = np.zeros(len(pool))
            asked_words, _ = analyse(a.question, ANALYZER)
            at, scores = bm25.scores(flat, asked_words, "lucene", *bm25.DEFAULTS["lucene"])
            words_score[at] = scores
            fused = (cosine - cosine.min()) / np.ptp(cosine) + words_score / max(words_score.max(), 1e-9)
            best.append([pool[i] for i in np.argsort(-fused, kind="stable")[:PASSAGES]])
        return best


def fit(features: Sequence[dict[str, float]], right: np.ndarray, fitted_on: FittedOn) -> Fitted:
    """Logistic regression with a ridge penalty on standardised features, written back for raw ones."""
    raw = np.array([[f[n] for n in evidence.FEATURES] for f in features])
    mean, scale = raw.mean(0), np.where(raw.std(0) > 0, raw.std(0), 1.0)
    x = (raw - mean) / scale
    sign = np.where(right, 1.0, -1.0)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = sign * (x @ w[1:] + w[0])
        slope = -sign / (1 + np.exp(z))
        penalty = RIDGE * w[1:]
        return (
            float(np.logaddexp(0, -z).sum() + penalty @ w[1:] / 2),
            np.concatenate([[slope.sum()], x.T @ slope + penalty]),
        )

    w = minimize(loss, np.zeros(x.shape[1] + 1), jac=True, method="L-BFGS-B").x
    weights = w[1:] / scale
    bias = round(float(w[0] - weights @ mean), 4)
    named = zip(evidence.FEATURES, weights, strict=True)
    return Fitted(bias, {n: round(float(w), 4) for n, w in named}, fitted_on)


def write(fitted: Fitted) -> None:
    on = fitted.fitted_on
    tree = {
        "bias": fitted.bias,
        "weights": dict(fitted.weights),
        "fitted_on": {"data": on.data, "split": on.split, "metric": on.metric},
    }
    FITTED.parent.mkdir(parents=True, exist_ok=True)
    head = "# The probability that what extract would say is right. Made by bench/extract.py --fit.\n"
    FITTED.write_text(head + yaml.safe_dump(tree, sort_keys=False, width=100), encoding="utf-8")


def read_fitted() -> Fitted:
    return config.build(Fitted, config.read_yaml(FITTED), config.Where(str(FITTED)))


@dataclass(frozen=True, slots=True)
class Given:
    """Choices where the passage was given."""

    name: str
    asked: Sequence[Asked]
    found: Sequence[list[str]]  # candidate sentences
    choices: Sequence[BestSentence]

    def cited(self) -> float:
        """Share of questions whose cited sentence holds an answer."""
        rows = zip(self.asked, self.found, self.choices, strict=True)
        return float(np.mean([holds(found[c.best], a.answers) for a, found, c in rows]))

    def said(self) -> float:
        """Share of questions whose reply, the sentence or its span, holds an answer."""
        rows = zip(self.asked, self.choices, strict=True)
        return float(np.mean([holds(c.text, a.answers) for a, c in rows]))


def sentence_table(given: Sequence[Given]) -> Table:
    table = Table("passage given", "questions", "sentence holds an answer", "wanted", "reply holds one")
    for g in given:
        share = f"{g.cited():.3f}"
        table.add_row(g.name, str(len(g.asked)), share, f">= {WANTED[g.name]:.2f}", f"{g.said():.3f}")
    return table


def decision_table(right: np.ndarray, p: np.ndarray, held_out: np.ndarray) -> Table:
    """What each threshold makes of the replies: right (rows,) bool, p (rows,) their fitted probability."""
    table = Table("passage found", "rows", "threshold", "answered", "precision", "score")
    for name, rows in (("fitted on", ~held_out), ("held out", held_out)):
        for threshold in (0.0, 0.4, 0.5, 0.6, 0.7):
            r, answered = right[rows], p[rows] >= threshold
            precision = f"{r[answered].mean():.3f}" if answered.any() else "-"
            score = (2 * r[answered].sum() - answered.sum()) / len(r)
            table.add_row(
                name, str(len(r)), str(threshold), f"{answered.mean():.3f}", precision, f"{score:+.3f}"
            )
    return table


def passages_of(texts: Iterable[str]) -> list[str]:
    """The passages of `local`."""
    folded = [fold(t) for t in texts]
    return [t[a:b] for t in folded for a, b in windows.character_windows(t, *WINDOW)]


def page_texts(paths: Sequence[Path]) -> Iterator[str]:
    """The texts of the pages and snippets of a CRAG dataset, each once."""
    seen: set[str] = set()
    for row in readers.open(paths, "crag", readers.ReadCounts()):
        for source in row.sources:
            if source.kind in ("page", "snippet") and source.id not in seen:
                seen.add(source.id)
                yield to_text(source.content).text if source.kind == "page" else source.content


def count_sentences(data: Path, console: Console) -> int:
    """A table of sentences per passage. 7 where the default of `Extract.sentences` would leave one out."""
    with tempfile.TemporaryDirectory() as folder:
        write_synth(Path(folder), DEMO["questions"], DEMO["pages"], DEMO["seed"], DEMO["page_chars"])
        texts = {
            "NQ": [a.passage for a in read_nq(data / NQ)],
            "SQuAD": [a.passage for a in read_squad(data / SQUAD)],
            "real CRAG": page_texts([data / CRAG]),
            "demo": page_texts([Path(folder)]),
        }
        counts = {name: [len(sentences(p)) for p in passages_of(some)] for name, some in texts.items()}
    table = Table("passages of 700 characters", "passages", "mean", "50th", "95th", "99th", "most")
    for name, found in counts.items():
        cells = [f"{np.mean(found):.1f}", *(f"{np.percentile(found, p):.0f}" for p in (50, 95, 99, 100))]
        table.add_row(name, str(len(found)), *cells)
    console.print(table)
    read: int = inspect.signature(Extract).parameters["sentences"].default
    return 0 if max(map(max, counts.values())) <= read else 7


async def run(data: Path, refit: bool, console: Console) -> int:
    nq, squad = read_nq(data / NQ), read_squad(data / SQUAD)
    with Progress(console=console, transient=True) as progress:
        models = Models(progress)
        retrieved = await models.retrieve(nq)
        pooled = [sentences_of(*passages) for passages in retrieved]
        own = [sentences_of(a.passage) for a in nq]
        await models.match("NQ", nq, [p + o for p, o in zip(pooled, own, strict=True)])
        choices = await models.choices("NQ", nq, pooled)
        squad_own = [sentences_of(a.passage) for a in squad]
        given = [
            Given("NQ", nq, own, await models.choices("NQ", nq, own)),
            Given("SQuAD", squad, squad_own, await models.choices("SQuAD", squad, squad_own)),
        ]
    console.print(sentence_table(given))
    right = np.array([holds(c.text, a.answers) for a, c in zip(nq, choices, strict=True)])
    held_out = np.arange(len(nq)) % 2 == 1
    if refit:
        on = FittedOn(
            data=f"{Path(NQ).name} {digest((data / NQ).read_bytes())}",
            split="even rows, passages found among all",
            metric=f"log loss of: the reply holds an answer ({right[~held_out].mean():.3f} of rows do)",
        )
        write(
            fit([c.features for c, h in zip(choices, held_out, strict=True) if not h], right[~held_out], on)
        )
        console.print(f"wrote conf/fitted/{FITTED.name}")
    fitted = read_fitted()
    p = np.array([fitted.probability(c.features) for c in choices])
    found = np.mean([a.passage in r for a, r in zip(nq, retrieved, strict=True)])
    console.print(f"The gold passage is among the {PASSAGES} found for {found:.3f} of the questions.")
    console.print(decision_table(right, p, held_out))
    return 0 if all(g.cited() >= WANTED[g.name] for g in given) else 7


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="fit conf/fitted/local-extract.yaml again first")
    parser.add_argument("--sentences", action="store_true", help="only count the sentences of passages")
    args = parser.parse_args()
    console = Console()
    data = os.environ.get("RAYPIPE_DATA")
    if not data:
        console.print("RAYPIPE_DATA is not set: it must name the folder that has openqa/ and squad/")
        return 3
    if args.sentences:
        return count_sentences(Path(data), console)
    try:
        return asyncio.run(run(Path(data), args.fit, console))
    except RaypipeError as e:
        console.print(str(e))
        return e.exit_code


if __name__ == "__main__":
    sys.exit(main())
