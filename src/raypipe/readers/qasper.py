"""Reader of QASPER's JSON: papers, questions and the answers of annotators.

A file is one object, paper id -> paper. v0.1 to v0.3 have this form (other fields are not read):

    {"1909.00694": {"title": "...", "abstract": "...",
      "full_text": [{"section_name": "Method ::: Loss", "paragraphs": ["We minimise ...", "Here ..."]}],
      "figures_and_tables": [{"caption": "Table 1: Sizes."}],
      "qas": [{"question": "Which loss?", "question_id": "753990d0...", "answers": [{"answer":
        {"unanswerable": false, "extractive_spans": ["hinge"], "yes_no": null, "free_form_answer": "",
         "evidence": ["We minimise ..."]}}]}]}}

A paper becomes a document: title, abstract, headings of sections (`#`), paragraphs and captions. Blank lines
separate them, so that each is one block of the parsed text. The layout of the document names the sections. A
question cites only its paper. If an annotator's answer has several forms, the first form in the evaluator's
order counts: unanswerable, spans, own words, yes or no.
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
    Question,
)
from raypipe.readers import files, lines, row_files
from raypipe.readers.documents.page_text import with_marks
from raypipe.readers.file_read import FileRead
from raypipe.readers.rows import LIMITS, Fields, ReadCounts, ReaderLimits, Row, UnusableLine, kind, source_of
from raypipe.text.page_parser import fold

ARXIV = "https://arxiv.org/abs/"
CAPTIONS = "Figures and tables"
"""Name of the section that holds the captions."""


def is_qasper(file: Path) -> bool:
    """Returns whether a file is JSON that begins like QASPER's papers."""
    if row_files.kind_of(file) != "json":
        return False
    try:
        head = next(files.stream(files.whole(file), ReadCounts(), LIMITS), b"")
    except DataError:
        return False  # the reader of the file reports the fault
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
    """Yields (FILE:ID, id, paper) for each paper. Raises DataError if the file is too large or malformed."""
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
    """Returns the annotators' answers to a question, in order. Raises UnusableLine if an answer has none of
    the four forms, or if a field has a wrong type."""
    said = Fields(question).objects("answers")
    return tuple(_annotator(Fields(a.get("answer", dict), f"{a.path}answer.")) for a in said)


def golds(paper: Mapping[str, Any]) -> Iterator[tuple[str, tuple[AnnotatorAnswer, ...]]]:
    for qa in Fields(paper).objects("qas"):
        yield qa.filled("question_id"), annotators(qa.value)


def _annotator(fields: Fields) -> AnnotatorAnswer:
    answer, evidence = fields.value, tuple(fields.listed("evidence", str))
    spans, said = fields.listed("extractive_spans", str), answer.get("free_form_answer") or ""
    if answer.get("unanswerable"):
        return AnnotatorAnswer(UNANSWERABLE, "none")  # without evidence, as in the evaluator
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
    title = _folded(paper.value.get("title"))
    sections = [("", [title, _folded(paper.value.get("abstract"))])]  # (name, paragraphs) of each section
    for section in paper.objects("full_text"):
        name, paragraphs = section.value.get("section_name"), section.listed("paragraphs", str)
        sections.append((_folded(name), paragraphs))
    figures = paper.listed("figures_and_tables")
    captions = [_folded(f.get("caption")) for f in figures if isinstance(f, dict)]
    sections += [(CAPTIONS, captions)] if any(captions) else []
    texts = ([f"# {name}" if name else "", *map(_folded, pieces)] for name, pieces in sections)
    whole = with_marks(["\n\n".join(filter(None, t)) for t in texts], [name for name, _ in sections])
    if not whole.content:
        return None
    source = source_of("document", whole.content)
    marks = tuple(mark for mark in whole.pages if mark.label)
    layout = Layout(id, source.id, ARXIV + id, title, (), marks)
    return Row(where, document=Document(id, title, source.id), layout=layout, sources=(source,))


def _folded(value: Any) -> str:
    """Folds a text to one line. Returns "" for any other value: some captions and section names are null."""
    return fold(value) if isinstance(value, str) else ""
