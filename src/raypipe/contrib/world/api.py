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

SENTENCES = 2000  # of invented prose that the stand-ins' tokenizers are trained on: some seconds


@dataclass(frozen=True, slots=True, repr=False)
class SynthResult(Result, record="summary"):
    """Counts of an invented dataset or collection; a row for each."""

    summary: SynthSummary | CollectionSummary

    @property
    def title(self) -> str:
        counts = {row["what"]: row["count"] for row in self.rows()}
        size = f"{counts.pop('bytes') / 1e6:,.1f} MB, in {self.summary.seconds:.1f} s"
        counts.pop("empty", None)
        said = ", ".join(f"{n} {_SAID.get(what, what)}" for what, n in counts.items())
        return f"{self.summary.folder}: {said}, {size}"

    def rows(self) -> Sequence[Mapping[str, Any]]:
        counts = asdict(self.summary).items()
        return [{"what": what, "count": count} for what, count in counts if isinstance(count, int)]


_SAID = {"pages": "distinct pages", "golds": "judged papers"}


def synthesize(
    folder: str | Path,
    questions: int,
    pages: int = 50,
    seed: int = 1,
    page_chars: int | None = None,
    session: Session | None = None,
) -> SynthResult:
    """Writes a CRAG-format dataset about an invented world, with its knowledge graph, to a folder.

    `pages` are search results a question. `page_chars`: characters of HTML a page, about; None: spread like
    those of real pages, 3 KB to 1.5 MB. Another `seed` is another world. Raises ConfError for a folder that
    cannot be written.
    """
    require_writable(Path(folder), "DIR")
    with (session or Session()).shown() as progress:
        task = progress.task("wrote", "questions", questions)
        advance = lambda done, total: task.reach(done)  # noqa: E731
        return SynthResult(write(Path(folder), questions, pages, seed, page_chars, advance))


def synthesize_papers(
    folder: str | Path, papers: int, questions: int, seed: int = 1, session: Session | None = None
) -> SynthResult:
    """Writes an invented collection of papers with questions and graded golds to a folder, as BEIR's files.

    Memory does not grow with `papers`. Another `seed` is another collection. Raises ConfError for a folder
    that cannot be written, and for more than one question for twenty papers.
    """
    require_writable(Path(folder), "DIR")
    with (session or Session()).shown() as progress:
        task = progress.task("wrote", "papers", papers)
        return SynthResult(write_collection(Path(folder), papers, questions, seed, task.reach))


@dataclass(frozen=True, slots=True, repr=False)
class StandinsResult(Result):
    """The folders of tiny stand-ins for models; a row for each."""

    made: Standins

    @property
    def models(self) -> Path:
        """The models file."""
        return self.made.chat.with_name("models.yaml")

    def rows(self) -> Sequence[Mapping[str, Any]]:
        made = self.made
        folders = [("chat", made.chat), *made.adapters]
        folders += [(name, getattr(made, name)) for name in ("embedder", "reranker", "instructor")]
        return [{"name": name, "folder": str(folder)} for name, folder in folders]

    def record(self) -> Mapping[str, Any]:
        return {**asdict(self.made), "adapters": dict(self.made.adapters), "models": self.models}


def build_standins(target: Path, trainable: bool = False) -> StandinsResult:
    """Builds tiny stand-ins for a chat model with adapters, two embedders and a reranker, and a models file
    that gives them the names that recipes use. `trainable`: the chat model can learn to end its replies, so
    that `finetune` can teach it."""
    prose, draw = Prose(random.Random(0)), random.Random(1)
    texts = [prose.sentence(draw) for _ in range(SENTENCES)]
    made = StandinsResult(standins.build(target, texts, trainable=trainable))
    names = Path(__file__).with_name("standins.yaml").read_text(encoding="utf-8")
    made.models.write_text(names.replace("standins DIR", f"standins {shlex.quote(str(target))}"))
    return made
