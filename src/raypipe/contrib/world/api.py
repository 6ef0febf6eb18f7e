"""Invented data: a world of questions with pages and a graph, a collection of papers, stand-in models."""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raypipe.api.results import Result
from raypipe.api.session import Session
from raypipe.contrib.world import standins
from raypipe.contrib.world.collection import CollectionSummary, write_collection
from raypipe.contrib.world.standins import Standins
from raypipe.contrib.world.styles import Prose
from raypipe.contrib.world.write import SynthSummary, write
from raypipe.core.textfile import require_writable

SENTENCES = 2000  # invented sentences that train the stand-ins' tokenizers; takes some seconds


@dataclass(frozen=True, slots=True, repr=False)
class SynthResult(Result, record="summary"):
    """Counts of an invented dataset or collection; one row per count."""

    summary: SynthSummary | CollectionSummary

    @property
    def title(self) -> str:
        counts = {row["what"]: row["count"] for row in self.rows()}
        size = f"{counts.pop('bytes') / 1e6:,.1f} MB, in {self.summary.seconds:.1f} s"
        counts.pop("empty", None)
        parts = ", ".join(f"{n} {_LABELS.get(what, what)}" for what, n in counts.items())
        return f"{self.summary.folder}: {parts}, {size}"

    def rows(self) -> Sequence[Mapping[str, Any]]:
        counts = asdict(self.summary).items()
        return [{"what": what, "count": count} for what, count in counts if isinstance(count, int)]


_LABELS = {"pages": "distinct pages", "golds": "judged papers"}


def synthesize(
    folder: str | Path,
    questions: int,
    pages: int = 50,
    seed: int = 1,
    page_chars: int | None = None,
    session: Session | None = None,
) -> SynthResult:
    """Writes a CRAG-format dataset about an invented world, with its knowledge graph, to a folder.

    `pages`: search results per question. `page_chars`: approximate HTML characters of a page; None: sizes
    vary like those of real pages, 3 KB to 1.5 MB. Each `seed` gives another world. Raises ConfError if the
    folder cannot be written.
    """
    require_writable(Path(folder), "DIR")
    with (session or Session()).shown() as progress:
        task = progress.task("wrote", "questions", questions)
        advance = lambda done, total: task.reach(done)  # noqa: E731
        return SynthResult(write(Path(folder), questions, pages, seed, page_chars, advance))


def synthesize_papers(
    folder: str | Path, papers: int, questions: int, seed: int = 1, session: Session | None = None
) -> SynthResult:
    """Writes an invented collection of papers, questions and graded golds, in BEIR's files.

    Memory does not grow with `papers`. Each `seed` gives another collection. Raises ConfError if the folder
    cannot be written, and if there is more than one question per twenty papers.
    """
    require_writable(Path(folder), "DIR")
    with (session or Session()).shown() as progress:
        task = progress.task("wrote", "papers", papers)
        return SynthResult(write_collection(Path(folder), papers, questions, seed, task.reach))


@dataclass(frozen=True, slots=True, repr=False)
class StandinsResult(Result):
    """Folders of stand-in models; one row per folder."""

    made: Standins

    @property
    def models(self) -> Path:
        return self.made.chat.with_name("models.yaml")

    def rows(self) -> Sequence[Mapping[str, Any]]:
        made = self.made
        folders = [("chat", made.chat), *made.adapters]
        folders += [(name, getattr(made, name)) for name in ("embedder", "reranker", "instructor", "decoder")]
        return [{"name": name, "folder": str(folder)} for name, folder in folders]

    def record(self) -> Mapping[str, Any]:
        return {**asdict(self.made), "adapters": dict(self.made.adapters), "models": self.models}


def build_standins(target: Path, trainable: bool = False) -> StandinsResult:
    """Builds tiny stand-ins for a chat model with adapters, three embedders and a reranker.

    Also writes a models file in which the stand-ins have the names that recipes use. `trainable`: the chat
    model can learn to end its replies, so `finetune` can train it."""
    prose, draw = Prose(random.Random(0)), random.Random(1)
    texts = [prose.sentence(draw) for _ in range(SENTENCES)]
    made = StandinsResult(standins.build(target, texts, trainable=trainable))
    names = Path(__file__).with_name("standins.yaml").read_text(encoding="utf-8")
    made.models.write_text(names.replace("standins DIR", f"standins {shlex.quote(str(target))}"))
    return made
