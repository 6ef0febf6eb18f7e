"""Reader of BEIR's files: documents with their sources, and questions over the whole collection.

One record of corpus.jsonl and one of queries.jsonl (an object `metadata` gives a document's fields):

    {"_id": "4983", "title": "Microstructural development of human newborn cerebral white matter ...",
     "text": "Alterations of the architecture of cerebral white matter in the developing human brain ..."}
    {"_id": "1", "text": "0-dimensional biomaterials show inductive properties."}

A document's source is its title, a newline and its text; documents of equal content share a source. A
question has no citations, so it searches the whole store. Its gold is made of relevance judgements: lines of
BEIR's qrels/test.tsv, which has a header, or of TREC's format, which has none:

    query-id    corpus-id    score
    1    31715818    1

    1 0 31715818 1

A grade is a whole number; a document is relevant if its grade is at least 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from raypipe.core.errors import DataError
from raypipe.core.records import Document, Gold, Question, digest
from raypipe.core.textfile import filled, write_json_lines, write_text
from raypipe.readers import files, lines
from raypipe.readers.fields import fields_of
from raypipe.readers.file_read import FileRead
from raypipe.readers.files import Input
from raypipe.readers.lines import JsonLine
from raypipe.readers.rows import BadLine, Fields, ReadCounts, ReaderLimits, Row, require_rows, source_of

WANTED = ("corpus", "queries")  # prefixes of the files' names


def inputs_of(
    paths: Iterable[str | Path], counts: ReadCounts | None = None
) -> tuple[list[Input], list[Input], list[Path]]:
    """Lists the files of documents, of queries and of judgements. The other files of a folder are added to
    `counts`. Raises DataError for a file that has none of these names."""
    judged: dict[Path, None] = {}
    others = []
    for path in map(Path, paths):
        if path.is_file() and is_qrels(path):
            judged[path] = None
            continue
        others.append(path)
        if path.is_dir():
            inside = _judgements_of(path)
            judged |= dict.fromkeys(inside)
            if counts:  # `find` adds all files that it does not list itself
                counts.other_files -= sum(p.parent == path for p in inside)
    found = files.find(others, WANTED, counts)
    for file in found:
        if not Path(file.name).name.startswith(WANTED):
            raise DataError(f"{file.name}: expected a name that starts with corpus, queries or qrels.")
    corpora = [f for f in found if Path(f.name).name.startswith("corpus")]
    return corpora, [f for f in found if f not in corpora], list(judged)


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    corpora, queries, judged = inputs_of(paths)
    return [part for found in (*corpora, *queries) for part in found.parts] + judged


def rows(paths: Iterable[str | Path], read: FileRead) -> Iterator[Row]:
    """Yields a row for each document, then for each query with its judgements. If there are no files of
    queries, yields the judgements as golds, because the queries are in the store. Raises DataError if no line
    of a file can be read, because a corpus is useless without its queries."""
    counts = read.counts
    corpora, queries, judged = inputs_of(paths, counts)

    def found() -> Iterator[Row]:
        grades = _judgements(judged, counts, read.limits)
        makes: list[tuple[Input, Callable[[JsonLine], Row | None]]] = [(file, _document) for file in corpora]
        makes += [(file, partial(_question, grades=grades)) for file in queries]
        for file, make in makes:
            bad, before = list[BadLine](), counts.lines - counts.blank_lines - counts.faults
            for line in lines.read([replace(file, span=read.span)], counts, read.limits):
                for row in read.settled(line.where, partial(make, line)):
                    bad += [BadLine(row.where, f.reason, f.detail) for f in row.faults]
                    yield row
            if bad and read.span is None and before == counts.lines - counts.blank_lines - counts.faults:
                require_rows([file.name], ReadCounts(lines=len(bad)), bad[:3])
        if not queries:  # the judgements belong to queries in the store
            yield from (Row(str(judged[0]), gold=Gold(q, (), {}, g)) for q, g in grades.items())

    return found()


def _document(line: JsonLine) -> Row | None:
    value = line.unwrap()
    fields = Fields(value)
    id, title = fields.identifier("_id"), fields.get("title") if "title" in value else ""
    content = f"{title}\n{fields.get('text')}"
    if content.isspace():
        return None
    source = source_of("document", content)
    said = fields_of({**inner} if isinstance(inner := value.get("metadata"), dict) else {})
    return Row(line.where, document=Document(id, title, source.id, said), sources=(source,))


def _question(line: JsonLine, grades: Mapping[str, Mapping[str, int]]) -> Row | None:
    fields = Fields(line.unwrap())
    id = fields.identifier("_id")
    gold = Gold(id, (), {}, grades[id]) if id in grades else None
    return Row(line.where, Question(id=id, text=fields.filled("text")), gold)


NAME = re.compile(r"\A.+\.(?:tsv|trec|txt|qrels)(?:\.gz)?")
BEIR, TREC = "query-id corpus-id score", "query 0 document relevance"
FOLDER, SPLIT = "qrels", ("test.tsv", "test.tsv.gz")


def is_qrels(path: Path) -> bool:
    """Returns whether a file is named like judgements, such as qrels.trec or qrels/test.tsv."""
    named = path.name.startswith(FOLDER) or path.parent.name == FOLDER
    return named and NAME.fullmatch(path.name) is not None


def _judgements_of(folder: Path) -> list[Path]:
    """Lists the files of judgements in a data set's folder: all named qrels*, and in qrels/ the only split,
    else the test split. Raises DataError if qrels/ has several splits but no test split."""
    here = sorted(p for p in folder.iterdir() if p.is_file() and is_qrels(p))
    inside = folder / FOLDER
    splits = sorted(p for p in inside.iterdir() if is_qrels(p)) if inside.is_dir() else []
    tests = [p for p in splits if p.name in SPLIT] if len(splits) > 1 else splits
    if splits and not tests:
        names = ", ".join(p.name for p in splits)
        raise DataError(f"{inside}: expected test.tsv, found {names}. Name the file that is to be used")
    return [*here, *tests]


def _judgements(paths: Iterable[Path], counts: ReadCounts, limits: ReaderLimits) -> dict[str, dict[str, int]]:
    grades: dict[str, dict[str, int]] = {}
    for path in paths:
        beir = None
        for where, text in lines.texts(files.whole(path), counts, limits):
            line = text.strip()
            values = line.split("\t") if beir and line else line.split()
            if (beir is None and (beir := values == BEIR.split())) or not values:
                continue
            if len(values) != len((names := BEIR if beir else TREC).split()):
                raise DataError(f"{where}: expected {names!r}, found {' '.join(values)!r:.100}")
            query, document, grade = values if beir else (values[0], *values[2:])
            if not re.fullmatch(r"-?[0-9]{1,9}", grade):
                raise DataError(f"{where}: expected a whole number as grade, found {grade!r:.40}")
            if grades.setdefault(query, {}).setdefault(document, int(grade)) != int(grade):
                raise DataError(f"{where}: document {document!r} has two grades for query {query!r}")
            counts.judgements += 1
    return grades


def write_pool(path: Path, folder: Path, questions: int) -> None:
    """Converts a file of questions with passages to corpus.jsonl, queries.jsonl and qrels.trec in `folder`.
    Each JSON line of `path` holds a `question` and its passages, `ctxs`. The corpus has every passage once.
    Only the first `questions` questions are written; all passages of a question are judged relevant to it.
    Raises DataError if a line has another form."""
    corpus: dict[str, dict[str, str]] = {}
    queries, judged = [], []
    for number, line in enumerate(filled(path)):
        row = line.object()
        try:
            passages = [{"title": c["title"], "text": c["text"]} for c in row["ctxs"]]
            question = row["question"]
        except (KeyError, TypeError) as e:
            raise line.error("question and ctxs of title and text", line.text) from e
        ids = [digest("pooled", p["title"], p["text"])[:16] for p in passages]
        corpus |= {id: {"_id": id, **passage} for id, passage in zip(ids, passages, strict=True)}
        if number < questions:
            queries.append({"_id": f"q{number}", "text": question})
            judged += [f"q{number} 0 {id} 1\n" for id in dict.fromkeys(ids)]
    write_json_lines(folder / "corpus.jsonl", corpus.values())
    write_json_lines(folder / "queries.jsonl", queries)
    write_text(folder / "qrels.trec", "".join(judged))
