"""No place of a store is left out of the list that a forget goes through."""

from raypipe.store import layout
from raypipe.store.tables import KINDS
from raypipe.store.text_places import FILES, TABLES, WITHOUT_TEXT, Gone


def test_every_table_and_every_file_of_a_store_is_listed_once():
    assert TABLES.keys() == KINDS.keys()
    places = {value for name, value in vars(layout).items() if name.isupper()}
    assert FILES.keys() | WITHOUT_TEXT.keys() == places and not FILES.keys() & WITHOUT_TEXT.keys()


def test_each_table_is_found_by_a_column_that_it_has_and_ids_that_a_forget_knows():
    for kind, place in TABLES.items():
        assert place.column in KINDS[kind].columns.names
        assert hasattr(Gone(), place.of) and (not place.edited or hasattr(Gone(), place.edited))
