"""A store from before a column came: its questions keep ids and content, and new ones stand next to them."""

import lancedb

from raypipe.core import arrow
from raypipe.core.records import Question, Turn
from raypipe.store import Store
from raypipe.store.commit import put
from raypipe.store.tables import kind_of, table_schema

OLD = [Question("a", "who?", citations=()), Question("b", "what?")]
NEW = Question("c", "and its budget?", turns=(Turn("user", "who?"), Turn("assistant", "ann")))


def test_a_store_of_before_is_read_as_it_is_and_gets_the_column_with_its_next_driver(tmp_path):
    store = Store.create(str(tmp_path / "store"))
    columns = kind_of("questions").columns
    before = table_schema("questions", columns)
    before = before.remove(before.get_field_index("turns"))
    rows = arrow.question.table(OLD).drop_columns(["turns"]).cast(before)
    store.files.remove_folder("questions.lance")
    lancedb.connect(store.uri).create_table("questions", rows, schema=before)
    assert arrow.question.records(store.scan("questions")) == OLD, "without turns"

    with store.lease("driver", "test"):
        store.ensure("questions", columns)
        came = put(store, "questions", arrow.question.table([*OLD, NEW]))
    assert (came.added, came.replaced, came.equal) == (("c",), (), 2), "no old question is another one now"
    assert sorted(arrow.question.records(store.scan("questions")), key=lambda q: q.id) == [*OLD, NEW]
    assert arrow.question.records(store.scan("questions", version=1)) == OLD
