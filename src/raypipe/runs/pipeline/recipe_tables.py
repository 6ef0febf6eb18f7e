"""Tables that a recipe searches in a store, its approximate indexes, and the sources that they lack.

A page whose parser met a time limit has no rows in the searched tables. A question is answered without it,
and the key of that answer names what was absent. Once the page is there, the question has another key, so its
answer is missing and made. Nothing is replaced: each answer stays true of what it was made from.

Knows recipes and the store; reads, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from raypipe.core import arrow
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError, DataError, RaypipeError
from raypipe.core.index import AnnRecall, Approximate
from raypipe.core.protocols import Model
from raypipe.core.records import Question, digest
from raypipe.recipes.recipe import Recipe, row_key
from raypipe.recipes.step_contract import approximate, embedder_of
from raypipe.runs.record import AnswerKey
from raypipe.store import Store
from raypipe.store.ids import Ids, filters
from raypipe.store.index import LAYOUTS, NAMED, IndexSpec, Pinned, fields_now, index_spec
from raypipe.store.sources import lacking as lacking_tables
from raypipe.store.sources import rows_id, sources_without
from raypipe.store.vector_search import ann_index, recall_of, require_ann
from raypipe.text.filters import ConditionError

WORDS = "words "  # begins what a source lacks that is not in the postings of an analyzer

Lacks = Mapping[str, tuple[str, ...]]
"""Source -> what it lacks (`recipe_tables.lacking`)."""


@dataclass(frozen=True, slots=True)
class AnswerSources:
    """The sources that some questions are answered from by one recipe. Make it with `answer_sources`."""

    snapshot: str  # names all that the store can search: the corpus of a question without citations
    lacks: Lacks  # of all sources that these questions may search
    whole: str  # names all of `lacks`: what a question without citations is answered without
    everything: bool = False  # True: the recipe searches the whole store whatever a question cites
    conditional: bool = False  # True: it searches what the fields in the store say
    turns: str = ""  # `Recipe.turns_digest`
    kept: Mapping[str, AnswerKey] = field(default_factory=dict)  # question -> its answer of an earlier run

    def row(self, question: Question) -> str:
        """Names what the question asks, and of what it should be answered (`recipe.row_key`)."""
        return row_key(question, self.snapshot, self.everything or self.conditional, self.turns)

    def absent(self, question: Question) -> str:
        """Names what the question is answered without; "" where all that it may search is there."""
        cited = question.sources()
        if cited is None or self.everything:
            return self.whole
        # A question that is searched for in its own sources reads no postings.
        own = {
            s: tuple(x for x in self.lacks[s] if not x.startswith(WORDS))
            for s in self.lacks.keys() & set(cited)
        }
        return _named({s: left for s, left in own.items() if left})

    def key(self, recipe: str, question: Question) -> str:
        if question.id in self.kept:
            return self.kept[question.id].key
        return answer_key(recipe, question.id, self.row(question), self.absent(question))


def answer_sources(snapshot: str, lacks: Lacks, recipe: Recipe) -> AnswerSources:
    """Makes the AnswerSources of a recipe. `lacks` covers every source that the questions may search."""
    everything, conditional = recipe.searches_all(), bool(recipe.conditions())
    return AnswerSources(snapshot, lacks, _named(lacks), everything, conditional, recipe.turns_digest())


def answer_key(recipe: str, question: str, row: str, absent: str) -> str:
    """Key of an answer: recipe digest, question id, row key, and what was absent."""
    return digest(recipe, question, row, *([absent] if absent else []))


def _named(lacks: Lacks) -> str:
    return digest("absent", *(f"{s}: {', '.join(lacks[s])}" for s in sorted(lacks))) if lacks else ""


def require_passages(recipe: Recipe, store: Store, questions: Iterable[Question] | None = None) -> None:
    """Raises DataError where one of the questions (None: any) searches the whole of a store that holds
    nothing. Recipes that need no passages are never refused, nor are questions with pages of their own."""
    if lacks_passages(recipe, store) and (questions is None or any(q.sources() is None for q in questions)):
        raise DataError(nothing_to_search(recipe, store.uri))


def lacks_passages(recipe: Recipe, store: Store | None) -> bool:
    """Returns whether a recipe needs passages and the store has no source for one; None: no store yet."""
    if not recipe.needs_passages():
        return False
    return store is None or not store.count("sources", next(filters("kind", recipe.source_kinds())))


def nothing_to_search(recipe: Recipe, uri: str) -> str:
    """The message of a store without sources that the recipe parses, with the command that mends it."""
    kinds, mend = recipe.source_kinds(), f"`raypipe ingest DIR --format files --store {uri}` reads a folder"
    alone = "" if "document" in kinds else f"; {recipe.name} reads sources of kind {', '.join(kinds)} alone"
    return f"nothing to search in {uri}: {mend}{alone}"


INDEX_WORDS = "index.words_"  # what a step reads that searches by words, then the analyzer


def whole_corpus(recipe: Recipe) -> tuple[str, tuple[str, ...]]:
    """Names the work of filling texts, passages and vectors in one pass, and these tables in their order."""
    vectors = (recipe.vectors_table(model) for model in recipe.embedders())
    tables = (recipe.texts_table, recipe.passages_table, *vectors)
    return f"corpus-{digest(*tables)}", tables


def postings_tables(recipe: Recipe) -> dict[str, tuple[str, str]]:
    """Analyzer -> its tables of postings and of lengths, for each that a question step searches with."""
    known = [w for stage in recipe.question for w in stage.step.reads() if w.startswith(INDEX_WORDS)]
    names = sorted({w.removeprefix(INDEX_WORDS) for w in known})
    digests = {name: digest("postings", recipe.passages_digest(), name) for name in names}
    return {name: (f"postings-{d}", f"lengths-{d}") for name, d in digests.items()}


def searched(store: Store, recipe: Recipe) -> IndexSpec:
    """Returns what a process opens to search: the recipe's tables at their present versions. Postings are
    among them where they have every source of the passages but dead letters; else the texts' words are
    searched. Raises ConfError and RecallTooLow for an approximate index that may not be searched
    (`require_measured`)."""
    spec = tables_now(store, recipe)
    require_measured(store, recipe, spec)
    return spec


def tables_now(store: Store, recipe: Recipe) -> IndexSpec:
    """The same, whatever approximate indexes there are."""
    vectors = {model_identity(m): recipe.vectors_table(m) for m in recipe.embedders()}
    words = {name: t for name, t in postings_tables(recipe).items() if all(map(store.has, t))}
    spec = index_spec(store, recipe.texts_table, recipe.passages_table, vectors, words)

    def whole(lengths: Pinned) -> bool:
        """Returns whether postings have every source of the passages, but those that failed for good."""
        opened = (store.dataset(t.table, t.version) for t in (spec.passages, lengths))
        if not (left := sources_without(*opened)):
            return True
        lost = store.scan("faults", ["id"], filter=f"digest = '{lengths.table}' AND NOT transient")["id"]
        return set(left) <= set(lost.to_pylist())

    return replace(spec, words=tuple(w for w in spec.words if whole(w[2])))


def files_read(store: Store, recipe: Recipe) -> list[str]:
    """Names the places and times of all files, where a step of a recipe reads them (`text.evidence`); none
    where no folder was read."""
    if not (store.has(LAYOUTS) and any("index.layouts" in stage.step.reads() for stage in recipe.question)):
        return []
    files = arrow.with_id_texts(
        store.scan(LAYOUTS, ["source", "url", "modified"], filter="modified != ''").to_pylist()
    )
    return [digest("files", *sorted(" ".join(file.values()) for file in files))] if files else []


def fields_read(store: Store, recipe: Recipe) -> list[str]:
    """Names the fields of all documents, where a stage or a stored question has a condition on them."""
    if not (recipe.conditions() or _stored_conditions(store)):
        return []
    tables = [t for t in (*NAMED[:1], LAYOUTS) if store.has(t)]
    return [digest("fields", *(rows_id(store, t, store.dataset(t)) for t in tables))]


def _stored_conditions(store: Store) -> dict[str, str]:
    """The condition of each stored question that has one, by what messages call the question."""
    if "where" not in store.dataset("questions").schema.names:  # as in a store of before
        return {}
    found = store.scan("questions", ["id", "where"], filter="`where` != ''")
    return {f"question {row['id']}": row["where"] for row in found.to_pylist()}


def require_fields(store: Store, recipe: Recipe, questions: Iterable[Question] | None) -> None:
    """Raises ConditionError for a condition of a stage, or of one of the questions (None: of any stored one),
    that the fields of the documents do not fit."""
    given = {f"recipe {recipe.name}, stage {name}": where for name, where in recipe.conditions().items()}
    if questions is None:
        given |= _stored_conditions(store)
    else:
        given |= {f"question {q.id}": q.where for q in questions if q.where}
    if not given:
        return
    fields = fields_now(store)
    for name, where in given.items():
        try:
            fields.check(where)
        except ConditionError as e:
            raise ConditionError(f"{name}: {e}") from e


def searched_at(uri: str, recipe: Recipe, tables: Mapping[str, int]) -> IndexSpec:
    """The same, of tables at the versions of a run or release. Raises KeyError for one that it has not;
    postings are there where a question searched the whole store."""

    def at(table: str) -> Pinned:
        return Pinned(table, tables[table])

    vectors = tuple(sorted((model_identity(m), at(recipe.vectors_table(m))) for m in recipe.embedders()))
    words = [(name, p, q) for name, (p, q) in postings_tables(recipe).items() if p in tables and q in tables]
    inverted = tuple((name, at(p), at(q)) for name, p, q in words)
    layouts = at(LAYOUTS) if LAYOUTS in tables else None
    texts, passages, named = at(recipe.texts_table), at(recipe.passages_table), tuple(map(at, NAMED))
    return IndexSpec(uri, texts, passages, vectors, inverted, layouts, named)


def table_names(store: Store, recipe: Recipe) -> list[str]:
    """The tables of its corpus half that the store has."""
    words = [t for tables in postings_tables(recipe).values() for t in tables]
    return [t for t in (*whole_corpus(recipe)[1], *words) if store.has(t)]


def table_labels(recipe: Recipe) -> dict[str, str]:
    """Returns what a source may lack (texts, passages, vectors of an embedder, words of an analyzer) -> the
    table that would have it. Equal labels mean the same in two recipes whose tables have other names."""
    vectors = {f"vectors {model_identity(m)}": recipe.vectors_table(m) for m in recipe.embedders()}
    words = {f"{WORDS}{name}": lengths for name, (_, lengths) in postings_tables(recipe).items()}
    return {"texts": recipe.texts_table, "passages": recipe.passages_table, **vectors, **words}


def lacking(store: Store, recipe: Recipe, sources: Ids, at: Mapping[str, int], whole: bool) -> dict[str, Ids]:
    """Returns what of `table_labels` is lacking -> those of the sources that lack it: texts alone where a
    source has no text, and vectors only where it has chunks. `at`: table -> version; for others the
    newest. A table that is not there lacks everything, but `words NAME` is lacking only where its postings
    are there, and a question searches the whole store (`whole`): else they are not read."""

    labels = {
        label: table
        for label, table in table_labels(recipe).items()
        if not label.startswith(WORDS) or (whole and store.has(table) and (not at or table in at))
    }
    return lacking_tables(store, labels, sources, at)


class RecallTooLow(RaypipeError):
    """An approximate search finds less of the exact best than its recipe demands."""

    exit_code = 7


@dataclass(frozen=True, slots=True)
class AnnStage:
    """A stage that searches the whole store by an approximate index."""

    name: str  # of the stage
    model: Model
    table: str  # of its vectors
    top: int
    how: Approximate


@dataclass(frozen=True, slots=True)
class AnnState:
    """The state of an approximate index that a stage searches."""

    stage: str
    kind: str  # of the index, such as ivf_rq
    rows: int  # vectors that there are; 0: none yet
    index: str  # its name; "": not built
    unindexed: int  # vectors that it lacks
    recall: AnnRecall | None  # None: not measured with these settings


def ann_stages(recipe: Recipe) -> list[AnnStage]:
    """The stages of a recipe that search by an approximate index."""
    found = []
    for stage in recipe.question:
        if (searched := approximate(stage.step)) is not None:
            how, top = searched
            model = embedder_of(stage.step)
            found.append(AnnStage(stage.name, model, recipe.vectors_table(model), top, how))
    return found


def ann_names(store: Store, recipe: Recipe) -> list[str]:
    """The names of the indexes that a recipe searches: another index may find other passages."""
    tables = dict.fromkeys(s.table for s in ann_stages(recipe))
    opened = (ann_index(store.dataset(t)) for t in tables if store.has(t))
    return [found.name for found in opened if found is not None]


def ann_states(store: Store, recipe: Recipe) -> list[AnnState]:
    """Returns what there is of each approximate index that a recipe searches."""
    states = []
    for stage in ann_stages(recipe):
        here = store.has(stage.table)
        rows = store.count(stage.table) if here else 0
        found = ann_index(store.dataset(stage.table)) if here else None
        state = AnnState(stage.name, stage.how.index, rows, "", rows, None)
        if found is not None:
            recall = recall_of(store, stage.table, found.name, stage.top, stage.how)
            state = replace(state, index=found.name, unindexed=found.unindexed, recall=recall)
        states.append(state)
    return states


def require_measured(store: Store, recipe: Recipe, at: IndexSpec | None = None) -> list[AnnRecall]:
    """The measured recall of each approximate index, in the order of the stages, of tables at the versions of
    `at`; None: the newest. Raises ConfError for one that is not there, lacks vectors or was not measured,
    RecallTooLow for one below its `min_recall`."""
    versions = {pinned.table: pinned.version for pinned in at.pinned()} if at else {}
    found = []
    for stage in ann_stages(recipe):
        index = require_ann(store.dataset(stage.table, versions.get(stage.table)))
        recall = recall_of(store, stage.table, index.name, stage.top, stage.how)
        if recall is None:
            raise ConfError(
                f"stage {stage.name}: the recall of index {index.name} was not measured with "
                f"top {stage.top}, probes {stage.how.probes}, refine {stage.how.refine}: "
                f"`raypipe eval {recipe.name} --store {store.uri}` measures it"
            )
        found.append(recall)
        require_recall(stage, recall)
    return found


def require_recall(stage: AnnStage, found: AnnRecall) -> None:
    """Raises RecallTooLow where a measured question finds less than the stage's `min_recall`."""
    if found.worst < stage.how.min_recall:
        raise RecallTooLow(
            f"stage {stage.name}: expected each question to find at least {stage.how.min_recall:g} of the "
            f"exact best {stage.top}; the worst of {found.questions} finds {found.worst:.3f} (question "
            f"{found.worst_question!r}; mean {found.mean:.3f}, 5 % at or below {found.fifth:.3f}). Raise "
            "probes or refine, lower min_recall, or leave `ann` out: the exact search finds all"
        )
