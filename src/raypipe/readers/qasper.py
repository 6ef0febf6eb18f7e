"""QASPER's JSON to papers, questions and what annotators say.

A file is one object, paper id -> paper; v0.1 to v0.3 have this form (fields that are not read left out):

    {"1909.00694": {"title": "...", "abstract": "...",
      "full_text": [{"section_name": "Method ::: Loss", "paragraphs": ["We minimise ...", "Here ..."]}],
      "figures_and_tables": [{"caption": "Table 1: Sizes."}],
      "qas": [{"question": "Which loss?", "question_id": "753990d0...", "answers": [{"answer":
        {"unanswerable": false, "extractive_spans": ["hinge"], "yes_no": null, "free_form_answer": "",
         "evidence": ["We minimise ..."]}}]}]}}

A paper is a document: title, abstract, headings of sections (`#`), paragraphs and captions, each alone
between blank lines, so that each is one block of the parsed text. Its layout names the sections. A question
cites its paper alone. Annotators' answers are read in the evaluator's order: unanswerable, spans, own words,
yes or no.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from raypipe.core.errors import DataError
from raypipe.core.records import (
    PAPER,
    UNANSWERABLE,
    AnnotatorAnswer,
    Citation,
    Document,
    Gold,
    Layout,
    Mark,
    Question,
)
from raypipe.readers import files, lines, row_files
from raypipe.readers.rows import (
    LIMITS,
    Fields,
    FileRead,
    ReadCounts,
    ReaderLimits,
    Row,
    UnusableLine,
    kind,
    source_of,
)
from raypipe.text.html import fold

ARXIV = "https://arxiv.org/abs/"
CAPTIONS = "Figures and tables"
"""Name of the section with the captions."""


def is_qasper(file: Path) -> bool:
    """Returns whether a JSON file begins as one of papers does."""
    if row_files.kind_of(file) != "json":
        return False
    try:
        head = next(files.stream(files.whole(file), ReadCounts(), LIMITS), b"")
    except DataError:
        return False  # its reader says what is wrong
    return head.lstrip().startswith(b"{") and b'"full_text"' in head and b'"abstract"' in head


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    return files.named_files(paths, lambda p: row_files.kind_of(p) == "json", "QASPER's .json or .json.gz")


def rows(paths: Iterable[str | Path], read: FileRead) -> Iterator[Row]:
    counts = read.counts
    for path in files_of(paths):
        for where, id, paper in papers(path, counts, read.limits):
            counts.lines += 1
            try:
                row, asked = _paper(where, id, Fields(paper)), Fields(paper).listed("qas")
            except UnusableLine as e:
                yield read.refused(where, e)
                continue
            yield from read.settled(where, lambda: row)  # noqa: B023, called at once
            cited = row.sources[0].id if row else None
            for n, qa in enumerate(asked):
                counts.lines += 1
                at = f"{where}.qas[{n}]"
                yield from read.settled(at, partial(_asked, at, qa, id, cited, counts))


def papers(
    path: Path, counts: ReadCounts | None = None, limits: ReaderLimits = LIMITS
) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yields place, id and paper of a file. Raises DataError for one of another form."""
    raw = files.content(files.whole(path), counts or ReadCounts(), limits, row_files.JSON_BYTES)
    try:
        tree = lines.without_nul(lines.parse(raw))
    except UnusableLine as e:
        raise DataError(f"{path}: expected JSON: {e.fault.detail}") from e
    if not isinstance(tree, dict) or not all(isinstance(paper, dict) for paper in tree.values()):
        raise DataError(f"{path}: expected an object, paper id -> paper, as QASPER's files are")
    for id, paper in tree.items():
        yield f"{path}:{id}", id, paper


def annotators(question: Mapping[str, Any]) -> tuple[AnnotatorAnswer, ...]:
    """Returns what annotators say of a question, in order. Raises UnusableLine for an answer of no kind."""
    said = Fields(question).objects("answers")
    return tuple(_annotator(Fields(a.get("answer", dict), f"{a.path}answer.")) for a in said)


def golds(paper: Mapping[str, Any]) -> Iterator[tuple[str, tuple[AnnotatorAnswer, ...]]]:
    for qa in Fields(paper).objects("qas"):
        yield qa.filled("question_id"), annotators(qa.value)


def _annotator(fields: Fields) -> AnnotatorAnswer:
    answer, evidence = fields.value, tuple(fields.listed("evidence", str))
    spans, said = fields.listed("extractive_spans", str), answer.get("free_form_answer") or ""
    if answer.get("unanswerable"):
        return AnnotatorAnswer(UNANSWERABLE, "none")  # no evidence, as the evaluator has it
    if spans:
        return AnnotatorAnswer(", ".join(spans), "extractive", evidence)
    if isinstance(said, str) and said:
        return AnnotatorAnswer(said, "abstractive", evidence)
    if isinstance(answer.get("yes_no"), bool):
        return AnnotatorAnswer("Yes" if answer["yes_no"] else "No", "boolean", evidence)
    kinds = "unanswerable, extractive_spans, free_form_answer or yes_no"
    raise UnusableLine("missing_field", f"{fields.path}: expected {kinds}, found none of them")


def _asked(where: str, qa: Any, paper: str, cited: str | None, counts: ReadCounts) -> Row:
    if not isinstance(qa, dict):
        raise UnusableLine("not_object", f"qa: expected an object, found {kind(qa)}")
    id, text = map(Fields(qa).filled, ("question_id", "question"))
    said = annotators(qa)
    counts.questions_without_pages += cited is None
    answers = tuple(dict.fromkeys(a.answer for a in said))
    labels = {"answer_type": said[0].kind, PAPER: paper} if said else {}
    gold = Gold(id, answers, labels, annotators=said) if said else None
    citations = () if cited is None else (Citation(id, 0, ARXIV + paper, "", cited, None, None),)
    return Row(where, Question(id, text, citations=citations), gold)


def _paper(where: str, id: str, paper: Fields) -> Row | None:
    pieces = [_folded(paper.value.get("title")), _folded(paper.value.get("abstract"))]
    sections: list[tuple[int, str]] = []  # piece that it begins with, name
    for section in paper.objects("full_text"):
        name = _folded(section.value.get("section_name"))
        sections.append((len(pieces), name))
        pieces += [f"# {name}" if name else "", *map(_folded, section.listed("paragraphs", str))]
    figures = paper.listed("figures_and_tables")
    captions = [_folded(f.get("caption")) for f in figures if isinstance(f, dict)]
    if any(captions):
        sections.append((len(pieces), CAPTIONS))
        pieces += [f"# {CAPTIONS}", *captions]
    content = "\n\n".join(p for p in pieces if p)
    if not content:
        return None
    starts, at = [], 0  # of the pieces in the parsed text, with a space between them
    for piece in pieces:
        starts.append(at)
        at += len(piece) + 1 if piece else 0
    ends = [*(starts[piece] for piece, _ in sections[1:]), at - 1]
    marks = tuple(
        Mark(starts[piece], max(starts[piece], end), name)
        for (piece, name), end in zip(sections, ends, strict=False)  # no section: one end too many
        if name
    )
    source = source_of("document", content)
    layout = Layout(id, source.id, ARXIV + id, pieces[0], (), marks)
    return Row(where, document=Document(id, pieces[0], source.id), layout=layout, sources=(source,))


def _folded(value: Any) -> str:
    """Text on one line; "" for what is none: some papers lack a caption, or a section its name."""
    return fold(value) if isinstance(value, str) else ""
