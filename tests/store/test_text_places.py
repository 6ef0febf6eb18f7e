"""No place of a store is left out of the list that a forget goes through."""

from raypipe.store import files
from raypipe.store.tables import KINDS
from raypipe.store.text_places import FILES, TABLES, Gone

WITHOUT_TEXT = {
    files.MARK: "a number",
    files.LEASES: "names of processes, tables and versions",
    files.RUNS: "plans of unfinished work, of which a forget lets none be",
    files.RECORDS: "recipes, versions and scores of runs",
    files.ATTEMPTS: "counts",
    files.PROBES: "replies to fixed texts",
    files.ADOPTED: "names and identities of models",
    files.COVERAGE: "ids of sources",
    files.CORPUS_SUMS: "sums of ids of sources",
    files.SIZES: "ids of sources, and numbers",
    files.CHANGING: "numbers of versions",
    files.MEMO: "cached values that a forget puts into their tables first",
    files.MEMO_LOSSES: "digests",
    files.RELEASES: "recipes and versions; those that rest on it end",
    files.LIVE: "ids of releases, in the folder of these",
    files.TOMBSTONES: "digests and reasons",
    files.FORGETTING: "the ids that go, until they are gone",
    files.CAPTURE_SECRET: "a secret",
}
"""File or folder of a store -> why no text is looked for there."""


def test_every_table_and_every_file_of_a_store_is_listed_once():
    assert TABLES.keys() == KINDS.keys()
    places = {value for name, value in vars(files).items() if name.isupper() and isinstance(value, str)}
    assert FILES.keys() | WITHOUT_TEXT.keys() == places and not FILES.keys() & WITHOUT_TEXT.keys()


def test_each_table_is_found_by_a_column_that_it_has_and_ids_that_a_forget_knows():
    for kind, place in TABLES.items():
        assert place.column in KINDS[kind].columns.names
        assert hasattr(Gone(), place.of) and (not place.edited or hasattr(Gone(), place.edited))
