"""Questions outside of an eval: `ask` answers a question, `walk` shows a question after each step, `rank`
ranks documents for queries."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from raypipe import readers
from raypipe.api.data import documents_store
from raypipe.api.indexes import open_docs, require_documents_read
from raypipe.api.pipelines import open_pipeline
from raypipe.api.results import Result, outside_loop
from raypipe.api.served_models import require_answering, require_same, require_unchanged
from raypipe.api.session import Named, Place, Session, endpoint_addresses, require_graphs
from raypipe.core.arrow import corpus_table, id_texts
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError, DataError
from raypipe.core.index import Index
from raypipe.core.progress import heartbeat
from raypipe.core.records import Citation, Question, Source, Turn, digest, source_id
from raypipe.core.textfile import filled
from raypipe.evaluation.golds import FINAL, documents_of, questions_of, ranked_documents, require_questions
from raypipe.metrics.ranking import trec_word, write_run
from raypipe.models.entry import REMOTE
from raypipe.models.kit import LocalKit
from raypipe.readers.conversation import MESSAGES, question_of, turns_of
from raypipe.readers.lines import parse, without_nul
from raypipe.readers.rows import UnusableLine
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.recipes.recipe import Recipe, ranking_of
from raypipe.recipes.serialize import from_plain
from raypipe.recipes.step_contract import named
from raypipe.runs.cluster.placement import asked_by, sharing
from raypipe.runs.pipeline.ingest import fingerprint, ingest
from raypipe.runs.pipeline.recipe_tables import require_passages
from raypipe.runs.release import live_now
from raypipe.serving.answerer import Answerer, NotReady
from raypipe.serving.query import Listener, QueryRequest, QueryResult
from raypipe.store import Store, StoreError
from raypipe.store.index import MemoryIndex
from raypipe.store.memo.disk import StoreMemo, memo_versions
from raypipe.text.filters import Filters
from raypipe.text.moments import moment


@dataclass(frozen=True, slots=True, repr=False)
class AskResult(Result, rows="result.passages"):
    """Answer to one question. The ranked passages are its rows, best first, if they were requested."""

    result: QueryResult

    @property
    def answer(self) -> str | None:
        """The answer; None if the question failed, or if the recipe only ranks."""
        return self.result.question.answer

    @property
    def outcome(self) -> str:
        """Outcome of the question: answered, abstained, false_premise, ranked or fault."""
        return self.result.question.outcome

    def record(self) -> Mapping[str, Any]:
        from raypipe.serving.http import answer_response  # the web framework takes half a second to import

        return answer_response(self.result, ("hits", "replies", "faults")).model_dump(exclude_unset=True)


@dataclass(frozen=True, slots=True, repr=False)
class RankResult(Result):
    """Ranked documents. Each document of a query is a row, best first. Ranks begin at 1."""

    recipe: str  # name of the recipe
    by: str  # name of the score that ranks
    run: Mapping[str, Mapping[str, float]]  # query -> document -> score, best first

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [
            {"query": query, "document": document, "rank": rank, "score": score}
            for query, found in self.run.items()
            for rank, (document, score) in enumerate(found.items(), 1)
        ]


@outside_loop
def ask(
    recipe: Named,
    question: str = "",
    pages: str | Path | None = None,
    asked_at: str = "",
    store: Place = None,
    passages: bool = True,
    on_text: Callable[[str], None] | None = None,
    session: Session | None = None,
    docs: str | Path | None = None,
    where: str = "",
    turns: str | Path | None = None,
) -> AskResult:
    """Answers one question in this process, from a store, a folder, or the pages in a file.

    `recipe` is a recipe's name, or "live" for the live release. `question` is a new text, or the id or text
    of a stored question, which searches only its own citations. `asked_at` is the question's time:
    `03/05/2024, 23:18:31 PT`. `pages` is a file with one CRAG line; its search results are searched instead
    of the store. `docs` is a folder of documents. Its changed files are first read and indexed in `store`
    (None: the folder's own store). `where` is a condition on fields of the searched documents, such as
    `date >= '2025-01-01'`. `passages` adds the texts of the ranked passages to the result. `on_text` receives
    pieces of a reply while a vLLM engine in this process generates it. `turns` is a file of earlier messages
    with `role` and `content`: a JSON list, or one JSON object per line. Without a `question`, the user's last
    message there is answered. Raises ConfError, DataError, ModelMissing, StoreError and Unavailable.
    """
    session, live = session or Session(), recipe == "live"
    if live and session.sets:
        raise ConfError("--set: expected a recipe's name, found live: a release answers as it was promoted")
    if docs is not None and (pages is not None or live):
        raise ConfError("--docs: expected with the name of a recipe, and without --pages")
    request = _request(question, turns, pages, asked_at)
    request = replace(request, include_passages=passages, filters=Filters(where=where))
    if pages is None:
        session = session.over(store if docs is None or store else documents_store(docs, session))
    release = live_now(session.store(store)) if live else None
    found = require_graphs(session.recipe(recipe)) if release is None else from_plain(release.recipe)
    if release is not None:
        require_same(found.models(), session)
    waiting = _Waiting(on_text) if on_text else _Waiting()
    kit = local_kit(session, found, on_text=waiting.on_draft if on_text else None)
    opened = None if pages is not None else _searched(session, found, request.question.text, docs, store)
    if opened is not None and docs is None and release is None:  # a release has its own passages
        require_passages(found, opened)
    require_unchanged(opened, found.models(), kit.endpoints)
    memo = StoreMemo(opened.uri, memo_versions(opened)) if opened else None
    answerer = Answerer(found, kit, opened.uri if opened else "", memo, release)
    beat = heartbeat(waiting.say, "opening") if session.progress else nullcontext()

    async def answer() -> QueryResult:
        async with kit:
            return await answerer.answer(request, waiting)

    with beat as waiting.now:
        try:
            answered = asyncio.run(answer())
        except NotReady as e:
            raise StoreError(str(e)) from e
    if any(fault.transient for fault in answered.question.faults):
        require_answering(found.chats(), kit.endpoints, session.settings)  # raises if a server failed
    return AskResult(answered)


def _searched(
    session: Session, recipe: Recipe, question: str, docs: str | Path | None, store: Place
) -> Store:
    """Opens the store that a question searches; a folder `docs` is first read and indexed. Raises ConfError
    if the recipe cannot read the store's documents, or if it searches only pages of the question and it has
    none."""
    opened = None if docs is not None else session.store(store)
    if opened is not None:
        require_documents_read(recipe, opened)
    if recipe.reads_cited_alone():
        rows = () if opened is None else (opened.rows("questions", n, [question]) for n in ("id", "text"))
        if not any(found.num_rows for found in rows):
            reads = f"recipe {recipe.name} reads only the pages of its question, found no --pages"
            raise ConfError(f"{reads}. Give some, or take a recipe that searches, such as rag")
    return opened if opened is not None else open_docs(recipe, docs or "", store, session)


class _Waiting(Listener):
    """Listener that prints on stderr the step that runs, until the model's first text arrives."""

    def __init__(self, on_text: Callable[[str], None] = lambda piece: None) -> None:
        self.now: Callable[[str], None] | None = None  # sets the heartbeat's line; None: nothing is printed
        self._on_text, self._written = on_text, False

    def say(self, line: str) -> None:
        if not self._written:
            print(line, file=sys.stderr, flush=True)

    def on_stage(self, stage: str, seconds: float | None) -> None:
        if seconds is None and self.now is not None:
            self.now(f"step {stage}")

    def on_draft(self, piece: str) -> None:
        self._written = True
        self._on_text(piece)


def _request(
    question: str, messages: str | Path | None, pages: str | Path | None, asked_at: str
) -> QueryRequest:
    """Builds the request for a question, its pages, and its earlier turns in the file `messages`. Raises
    ConfError for a text that is empty or not UTF-8, and DataError for an invalid time or file."""
    turns: tuple[Turn, ...] = ()
    if messages is not None:
        lines, file = [line.text for line in filled(Path(messages))], str(messages)
        try:
            read_from = without_nul(parse("\n".join(lines).encode()))
        except UnusableLine as whole:
            try:
                read_from = [without_nul(parse(line.encode())) for line in lines if line.strip()]
            except UnusableLine:
                why = f"{MESSAGES}, found other JSON: {whole.fault.detail}"
                raise DataError(f"--turns {file}: {why}") from whole
        if isinstance(read_from, Mapping) and "role" in read_from:
            read_from = [read_from]  # a file of one line
        try:
            if question:
                turns = turns_of(read_from, file)
            else:
                question, turns = question_of(read_from, file)
        except UnusableLine as e:
            raise DataError(f"--turns {e.fault.detail}") from e
    if not question.strip():
        raise ConfError("expected a question, found an empty text")
    if question.encode("utf-8", "replace").decode() != question:
        raise ConfError("expected a question in UTF-8, found a byte that is none")
    if asked_at:
        moment(asked_at)
    if pages is None:
        return QueryRequest(Question(digest("ask", question), question, asked_at=asked_at, turns=turns))
    rows = list(readers.open([Path(pages)], "crag", readers.ReadCounts()))
    if len(rows) != 1 or (read := rows[0].question) is None:
        why = "; ".join(f.detail for r in rows for f in r.faults) or f"found {len(rows)}"
        raise DataError(f"{pages}: expected one CRAG line with search_results, {why}")
    asked = replace(read, text=question, asked_at=asked_at or read.asked_at, turns=turns)
    return QueryRequest(asked, tuple(rows[0].sources), rows[0].faults)


def local_kit(
    session: Session, recipe: Recipe, index: Index | None = None, on_text: Callable[[str], None] | None = None
) -> LocalKit:
    """Opens the models of a recipe for this process. Sends test chats to servers that have not accepted one
    recently, and raises as `require_answering`. Reads the cluster file only for vLLM and servers."""
    if not any(m.loader in REMOTE | {"vllm"} for m in recipe.models()):
        return LocalKit(index, "transformers")
    file = sharing(session.cluster_file(), asked_by(recipe))
    endpoints = endpoint_addresses(file, recipe.models(), session.settings.keys)
    require_answering(recipe.chats(), endpoints, session.settings, remembered=True)
    limits = file.engines.limits(file.device) if file.engines else None
    return LocalKit(index, file.backend, file.device, endpoints=endpoints, engine_limits=limits, sink=on_text)


@outside_loop
def rank(
    recipe: Named,
    corpus: str | Path | None = None,
    queries: str | Path | None = None,
    store: Place = None,
    by: str = FINAL,
    top: int = 20,
    session: Session | None = None,
    out: str | Path | None = None,
) -> RankResult:
    """Ranks documents for queries. The score of a document is the score of its best passage.

    `corpus` and `queries` are BEIR files, which get a store of their own. Without these files, the documents
    of `store` are ranked for its questions. `by` is the name of a score that the recipe computes. The
    default, `final`, takes the recipe's last order, with falling numbers as scores. At most `top` documents
    remain per query; documents without the score are left out. `out` is the file for a TREC run; an id that
    this format cannot hold is refused before the ranking. Raises ConfError, DataError and ModelMissing.
    """
    session = session or Session()
    if (corpus is None) != (queries is None):
        raise ConfError("--corpus and --queries belong together: give both, or neither and a --store")
    files = [Path(p) for p in (corpus, queries) if p]
    if files and store:
        raise ConfError("--store and --corpus: expected one: files are ranked in a store of their own")
    if not files:
        session = session.over(store)
    found = ranking_of(session.recipe(recipe))
    known = [*sorted({n for s in found.question for n in named(s.step.writes(), "hits")}), FINAL]
    if by not in known:
        raise ConfError(f"--by {by}: no step of {found.name!r} gives it; known: {', '.join(known)}")
    if files:  # a digest of the files names the store, so that a second run finds the vectors
        opened = Store.create(str(session.settings.stores / f"rank-{fingerprint(files, 'beir')[:12]}"))
    else:
        opened = session.store(store)
    with open_pipeline(session, opened, found) as pipeline:
        read = ingest(opened, files, "beir", pipeline.progress, pipeline.connect) if files else None
        questions = questions_of(pipeline, read.questions if read else None, None)
        require_questions(questions, files, opened)
        require_passages(found, opened, questions)
        listed = documents_of(opened)
        for id in chain(questions.ids, *listed.values()) if out is not None else ():
            trec_word(id)
        pipeline.index(questions)
        pipeline.answer(questions)
        answered = list(pipeline.answers(questions))
    ranked = RankResult(found.name, by, {q.id: ranked_documents(q, by, listed, top) for q in answered})
    if out is not None:
        write_run(Path(out), ranked.run, f"raypipe-{found.name}-{by}")
    return ranked


@dataclass(frozen=True, slots=True, repr=False)
class WalkResult(Result):
    """State of a question after each question step. Each step is a row."""

    texts: pa.Table  # one row per distinct page: text, spans that a browser would hide, words as hashes
    passages: pa.Table  # one row per chunk: source, its spans, and `chunk_text`
    vectors: Mapping[str, pa.Table]  # model -> one row per chunk: vector, FixedSizeList of float32
    after: Mapping[str, Question]  # step -> the question after this step

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [
            {"step": s, "hits": len(q.hits), "ranked": len(q.order), "answer": q.answer, "outcome": q.outcome}
            for s, q in self.after.items()
        ]

    def record(self) -> Mapping[str, Any]:
        return {"question": next(iter(self.after.values())).text, "steps": self.rows()}

    def text(self, source: str, span: tuple[int, int]) -> str:
        """Returns the text of a span of a page, such as the span of a hit or a quote."""
        texts = dict(zip(id_texts(self.texts["source"]), self.texts["text"].to_pylist(), strict=True))
        return str(texts[source][slice(*span)])


@outside_loop
def walk(
    recipe: Named, question: str, pages: Mapping[str, str], asked_at: str = "", session: Session | None = None
) -> WalkResult:
    """Takes one question through a recipe, step by step, in this process, without a store.

    `pages` maps URL to HTML, in the order of the search results. Raises ConfError and ModelMissing.
    """
    session = session or Session()
    found = require_graphs(session.recipe(recipe))
    sources = [Source(source_id("page", html), "page", html) for html in pages.values()]
    cited = zip(pages, sources, strict=True)
    citations = tuple(Citation("q", n, url, "", s.id, None, None) for n, (url, s) in enumerate(cited))
    asked = Question("q", question, asked_at=asked_at, citations=citations)
    corpora, models = CorpusExecutor(found, local_kit(session, found)), found.embedders()

    async def taken() -> WalkResult:
        texts = await corpora.texts(corpus_table(list(dict.fromkeys(sources))))
        passages = await corpora.passages(texts)
        vectors = {m.name: await corpora.vectors(passages, m) for m in models}
        index = MemoryIndex(texts, passages, {model_identity(m): vectors[m.name] for m in models})
        async with local_kit(session, found, index) as kit:
            steps = QuestionExecutor(found, kit).steps([asked])
            after = {name: rows[0] async for name, rows in steps}
        return WalkResult(texts, passages, vectors, after)

    return asyncio.run(taken())
