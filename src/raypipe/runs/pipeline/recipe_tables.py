"""Tables that a recipe searches in a store, the sources missing in them, and the keys of answers.

A source is missing, for example, if its parser met a time limit. Questions are then answered without the
source, and the key of each answer includes a digest of the missing sources. Once the source is indexed, the
questions get other keys, so they are answered again. The old answers stay stored under their old keys, and
stay true of the sources that they were made from. This module changes no table.
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
from raypipe.store.fields import LAYOUTS, NAMED, fields_now
from raypipe.store.ids import Ids, filters
from raypipe.store.index import IndexSpec, Pinned, index_spec
from raypipe.store.sources import corpus_sum, rows_id, sources_without
from raypipe.store.sources import lacking as lacking_tables
from raypipe.store.vector_search import ann_index, recall_of, require_ann
from raypipe.text.filters import ConditionError

WORDS = "words "  # prefix of the label of an analyzer's postings, before the analyzer's name (`table_labels`)

Lacks = Mapping[str, tuple[str, ...]]
"""Source -> labels (`table_labels`) of the tables in which it is missing."""


@dataclass(frozen=True, slots=True)
class AnswerSources:
    """Evidence of a recipe's answers: all that decides them besides the recipe and the question's text."""

    snapshot: str  # digest of everything searchable in the store (`snapshot_digest`)
    missing: Lacks  # for all sources that the questions may search
    missing_digest: str  # of `missing`, for questions that search the whole store; "": no source is missing
    everything: bool = False  # True: the recipe searches the whole store even if a question has citations
    conditional: bool = False  # True: a stage selects sources by their fields in the store
    turns: str = ""  # digest of the steps that read earlier turns (`Recipe.turns_digest`)
    kept_answers: Mapping[str, AnswerKey] = field(default_factory=dict)
    """Question id -> key of an earlier run's answer, which counts as the answer."""

    def row(self, question: Question) -> str:
        """Returns a digest of the question and all its sources, also missing ones (`recipe.row_key`)."""
        return row_key(question, self.snapshot, self.everything or self.conditional, self.turns)

    def absent(self, question: Question) -> str:
        """Returns a digest of the question's missing sources and the tables that lack them; "" for none."""
        cited = question.sources()
        if cited is None or self.everything:
            return self.missing_digest
        # Postings cover the whole store: a search within the question's own sources does not read them.
        mine = self.missing.keys() & set(cited)
        own = {s: tuple(x for x in self.missing[s] if not x.startswith(WORDS)) for s in mine}
        return _lacks_id({s: labels for s, labels in own.items() if labels})

    def key(self, recipe: str, question: Question) -> str:
        if question.id in self.kept_answers:
            return self.kept_answers[question.id].key
        return answer_key(recipe, question.id, self.row(question), self.absent(question))


def answer_sources(snapshot: str, lacks: Lacks, recipe: Recipe) -> AnswerSources:
    """Makes the AnswerSources of a recipe. `lacks` must cover every source that the questions may search."""
    everything, conditional = recipe.searches_all(), bool(recipe.conditions())
    return AnswerSources(snapshot, lacks, _lacks_id(lacks), everything, conditional, recipe.turns_digest())


def answer_key(recipe: str, question: str, row: str, absent: str) -> str:
    """Returns the key of an answer: a digest of the recipe's digest, the question's id, and the two digests
    that `AnswerSources.row` and `AnswerSources.absent` return."""
    return digest(recipe, question, row, *([absent] if absent else []))


def _lacks_id(lacks: Lacks) -> str:
    return digest("absent", *(f"{s}: {', '.join(lacks[s])}" for s in sorted(lacks))) if lacks else ""


def require_passages(recipe: Recipe, store: Store, questions: Iterable[Question] | None = None) -> None:
    """Raises DataError if a question searches the whole store, and the store has no source that the recipe
    reads. `questions` None stands for such a question. Never raises if the recipe needs no passages."""
    if lacks_passages(recipe, store) and (questions is None or any(q.sources() is None for q in questions)):
        raise DataError(nothing_to_search(recipe, store.uri))


def lacks_passages(recipe: Recipe, store: Store | None) -> bool:
    """Returns whether a recipe needs passages, but the store (None: no store) has no source for them."""
    if not recipe.needs_passages():
        return False
    return store is None or not store.count("sources", next(filters("kind", recipe.source_kinds())))


def nothing_to_search(recipe: Recipe, uri: str) -> str:
    """Returns the error message for a store without sources of the recipe's kinds, with a command to run."""
    kinds, mend = recipe.source_kinds(), f"`raypipe ingest DIR --format files --store {uri}` reads a folder"
    alone = "" if "document" in kinds else f"; {recipe.name} reads only sources of kind {', '.join(kinds)}"
    return f"nothing to search in {uri}: {mend}{alone}"


INDEX_WORDS = "index.words_"  # prefix in `Step.reads` of a search by words, before the analyzer's name


def whole_corpus(recipe: Recipe) -> tuple[str, tuple[str, ...]]:
    """Returns a name for filling the tables of texts, passages and vectors, and the names of these tables."""
    vectors = (recipe.vectors_table(model) for model in recipe.embedders())
    tables = (recipe.texts_table, recipe.passages_table, *vectors)
    return f"corpus-{digest(*tables)}", tables


def postings_tables(recipe: Recipe) -> dict[str, tuple[str, str]]:
    """Returns analyzer -> (postings table, lengths table), for each analyzer of the question steps."""
    known = [w for stage in recipe.question for w in stage.step.reads() if w.startswith(INDEX_WORDS)]
    names = sorted({w.removeprefix(INDEX_WORDS) for w in known})
    digests = {name: digest("postings", recipe.passages_digest(), name) for name in names}
    return {name: (f"postings-{d}", f"lengths-{d}") for name, d in digests.items()}


def searched(store: Store, recipe: Recipe) -> IndexSpec:
    """Returns the recipe's tables at their current versions, for a process that opens them to search. Leaves
    out postings (the index of words) that lack a source of the passages table, unless the source is a dead
    letter (failed for good). A search by words then reads the texts. Raises as `require_measured` if an
    approximate index may not be searched."""
    spec = tables_now(store, recipe)
    require_measured(store, recipe, spec)
    return spec


def tables_now(store: Store, recipe: Recipe) -> IndexSpec:
    """Returns the recipe's tables as `searched` does, without checking approximate indexes."""
    vectors = {model_identity(m): recipe.vectors_table(m) for m in recipe.embedders()}
    words = {name: t for name, t in postings_tables(recipe).items() if all(map(store.has, t))}
    spec = index_spec(store, recipe.texts_table, recipe.passages_table, vectors, words)

    def is_complete(lengths: Pinned) -> bool:
        opened = (store.dataset(t.table, t.version) for t in (spec.passages, lengths))
        if not (missing := sources_without(*opened)):
            return True
        lost = store.scan("faults", ["id"], filter=f"digest = '{lengths.table}' AND NOT transient")["id"]
        return set(missing) <= set(lost.to_pylist())

    return replace(spec, words=tuple(w for w in spec.words if is_complete(w[2])))


def snapshot_digest(store: Store, recipe: Recipe) -> str:
    """Returns a digest of everything that a search of the whole store depends on. This is the store's
    sources, and the approximate indexes, times of files and fields of documents that the recipe uses."""
    parts = [corpus_sum(store)]
    for table in dict.fromkeys(s.table for s in ann_stages(recipe)):
        if store.has(table) and (index := ann_index(store.dataset(table))) is not None:
            parts.append(index.name)
    dated = any("index.layouts" in stage.step.reads() for stage in recipe.question)  # `text.evidence` does
    if dated and store.has(LAYOUTS):
        layouts = store.scan(LAYOUTS, ["source", "url", "modified"], filter="modified != ''")
        if files := [" ".join(file.values()) for file in arrow.with_id_texts(layouts.to_pylist())]:
            parts.append(digest("files", *sorted(files)))
    if recipe.conditions() or _stored_conditions(store):
        tables = [t for t in (*NAMED[:1], LAYOUTS) if store.has(t)]
        parts.append(digest("fields", *(rows_id(store, t, store.dataset(t)) for t in tables)))
    return digest(*parts)


def _stored_conditions(store: Store) -> dict[str, str]:
    """Maps "question ID" to the question's condition on fields, for each stored question that has one."""
    if "where" not in store.dataset("questions").schema.names:  # a table may be older than the column
        return {}
    rows = store.scan("questions", ["id", "where"], filter="`where` != ''")
    return {f"question {row['id']}": row["where"] for row in rows.to_pylist()}


def require_fields(store: Store, recipe: Recipe, questions: Iterable[Question] | None) -> None:
    """Raises ConditionError if a condition of the recipe or of a question does not fit the fields of the
    store's documents. `questions` None: all stored questions are checked."""
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
    """Returns the recipe's tables at the versions of a run or release, which `tables` holds (table ->
    version). Raises KeyError if a table is missing there, except layouts and postings: only runs that
    searched the whole store have postings."""

    def at(table: str) -> Pinned:
        return Pinned(table, tables[table])

    vectors = tuple(sorted((model_identity(m), at(recipe.vectors_table(m))) for m in recipe.embedders()))
    words = [(name, p, q) for name, (p, q) in postings_tables(recipe).items() if p in tables and q in tables]
    inverted = tuple((name, at(p), at(q)) for name, p, q in words)
    layouts = at(LAYOUTS) if LAYOUTS in tables else None
    texts, passages, named = at(recipe.texts_table), at(recipe.passages_table), tuple(map(at, NAMED))
    return IndexSpec(uri, texts, passages, vectors, inverted, layouts, named)


def table_names(store: Store, recipe: Recipe) -> list[str]:
    """Returns those tables of the recipe's corpus steps that exist in the store, postings included."""
    words = [t for tables in postings_tables(recipe).values() for t in tables]
    return [t for t in (*whole_corpus(recipe)[1], *words) if store.has(t)]


def table_labels(recipe: Recipe) -> dict[str, str]:
    """Maps a label to each table in which a source can be missing: `texts`, `passages`, `vectors MODEL`,
    `words ANALYZER`. The labels are the same for all recipes; the names of the tables are not."""
    vectors = {f"vectors {model_identity(m)}": recipe.vectors_table(m) for m in recipe.embedders()}
    words = {f"{WORDS}{name}": lengths for name, (_, lengths) in postings_tables(recipe).items()}
    return {"texts": recipe.texts_table, "passages": recipe.passages_table, **vectors, **words}


def lacking(store: Store, recipe: Recipe, sources: Ids, at: Mapping[str, int], whole: bool) -> dict[str, Ids]:
    """Maps the label of each table (`table_labels`) to those of `sources` that have no row in the table.

    A source without text is listed under `texts` only. A source without chunks needs no vectors or words. If
    a table does not exist, it lacks every source. But `words NAME` is left out if its postings do not exist,
    or if `whole` is False: no question searches the whole store, and only such a search reads postings.

    `at` maps tables to the version to read. A table that is not in `at` is read at its newest version;
    postings that are not in `at` are left out, unless `at` is empty."""
    labels = {
        label: table
        for label, table in table_labels(recipe).items()
        if not label.startswith(WORDS) or (whole and store.has(table) and (not at or table in at))
    }
    return lacking_tables(store, labels, sources, at)


class RecallTooLow(RaypipeError):
    """Error of an approximate search that finds fewer of the exact best passages than its recipe demands."""

    exit_code = 7


@dataclass(frozen=True, slots=True)
class AnnStage:
    """A stage that searches the whole store with an approximate index."""

    name: str
    model: Model  # embedder
    table: str  # table of the vectors
    top: int  # chunks that the stage searches for
    how: Approximate  # the index and its search settings


@dataclass(frozen=True, slots=True)
class AnnState:
    """State of the approximate index that a stage searches."""

    stage: str
    kind: str  # kind of index, such as ivf_rq
    rows: int  # vectors in the table; 0: none yet
    index: str  # name of the index; "": not built
    unindexed: int  # vectors that the index does not contain
    recall: AnnRecall | None  # None: not measured with these settings


def ann_stages(recipe: Recipe) -> list[AnnStage]:
    """Returns the stages of a recipe that search with an approximate index."""
    stages = []
    for stage in recipe.question:
        if (searched := approximate(stage.step)) is not None:
            how, top = searched
            model = embedder_of(stage.step)
            stages.append(AnnStage(stage.name, model, recipe.vectors_table(model), top, how))
    return stages


def ann_states(store: Store, recipe: Recipe) -> list[AnnState]:
    """Returns the state of each approximate index that a recipe searches."""
    states = []
    for stage in ann_stages(recipe):
        name, rows, unindexed = "", 0, 0
        recall: AnnRecall | None = None
        if store.has(stage.table):
            rows = unindexed = store.count(stage.table)
            if (index := ann_index(store.dataset(stage.table))) is not None:
                name, unindexed = index.name, index.unindexed
                recall = recall_of(store, stage.table, name, stage.top, stage.how)
        states.append(AnnState(stage.name, stage.how.index, rows, name, unindexed, recall))
    return states


def require_measured(store: Store, recipe: Recipe, at: IndexSpec | None = None) -> list[AnnRecall]:
    """Returns the measured recall of each approximate index, in the order of the stages. `at` gives the
    versions of the tables; None: the newest. Raises ConfError if an index is missing, lacks vectors or was
    not measured, and RecallTooLow if its recall is below the stage's `min_recall`."""
    versions = {pinned.table: pinned.version for pinned in at.pinned()} if at else {}
    recalls = []
    for stage in ann_stages(recipe):
        index = require_ann(store.dataset(stage.table, versions.get(stage.table)))
        recall = recall_of(store, stage.table, index.name, stage.top, stage.how)
        if recall is None:
            searched = f"top {stage.top}, probes {stage.how.probes}, refine {stage.how.refine}"
            mend = f"`raypipe eval {recipe.name} --store {store.uri}` measures it"
            unmeasured = f"the recall of index {index.name} was not measured with {searched}"
            raise ConfError(f"stage {stage.name}: {unmeasured}: {mend}")
        recalls.append(recall)
        require_recall(stage, recall)
    return recalls


def require_recall(stage: AnnStage, found: AnnRecall) -> None:
    """Raises RecallTooLow if any question of the measurement found less than the stage's `min_recall`."""
    if found.worst < stage.how.min_recall:
        raise RecallTooLow(
            f"stage {stage.name}: expected each question to find at least {stage.how.min_recall:g} of the "
            f"exact best {stage.top}; the worst of {found.questions} finds {found.worst:.3f} (question "
            f"{found.worst_question!r}; mean {found.mean:.3f}, 5 % at or below {found.fifth:.3f}). Raise "
            "probes or refine, lower min_recall, or leave `ann` out: the exact search finds all"
        )
