"""A power cut takes what Lance did not sync: the table is as before the change, and the same work ends it."""

import json
from pathlib import Path

import pytest
from storerows import hex_id, passage_rows

from raypipe.core.arrow import id_texts
from raypipe.store import Store, commit, write_part
from raypipe.store.files import Files, boot
from raypipe.store.housekeeping import tag, tagged

pytestmark = pytest.mark.slow


def newest(store, table):
    """The manifest of the newest version: names of later ones come first."""
    return min(Path(store.uri, f"{table}.lance", "_versions").glob("*.manifest"))


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def unended(store, table, version, since=None):
    """As a driver leaves it that dies amid a change: `since` names the time since the machine's start."""
    note = {"version": version, "boot": since or boot()}
    store.files.write(f"_changing/{table}.json", json.dumps(note).encode())


def driven(store):
    with store.lease("driver", "the next command"):
        return store.files.names("_changing")


@pytest.fixture
def committed_once(store, passages):
    """The version that one commit has made."""
    write_part(store, passages, "one", "0", passage_rows(["a"]), {})
    return commit(store, passages, "one", ["0"])


def test_rows_of_a_part_are_on_disk_before_the_record_that_names_them(store, passages):
    events = []

    class Noting(Files):
        def sync(self, name):
            super().sync(name)
            events.append(name)

        def write(self, name, content):
            super().write(name, content)
            events.append(name)

    store.files = Noting(store.uri)
    write_part(store, passages, "one", "0", passage_rows(["a"]), {})
    record = events.index(f"_parts/{passages}/one/0.json")
    rows = store.files.walk(f"{passages}.lance/data")
    assert rows and set(rows) <= set(events[:record])


def test_a_commit_that_a_power_cut_spoilt_is_made_again_from_the_parts(store, passages, committed_once):
    write_part(store, passages, "two", "0", passage_rows(["b"]), {})
    record = store.files.read(f"_parts/{passages}/two/0.json")
    commit(store, passages, "two", ["0"])
    store.files.write(f"_parts/{passages}/two/0.json", record)  # the commit had not ended
    cut(newest(store, passages))
    unended(store, passages, committed_once, "before the power cut")
    assert driven(store) == []
    assert store.version(passages) == committed_once
    commit(store, passages, "two", ["0"])
    found = id_texts(store.dataset(passages).to_table()["source"])
    assert sorted(found) == sorted(map(hex_id, "aabb"))


def test_a_table_that_a_power_cut_spoilt_when_it_was_made_is_made_again(store, passages):
    schema = store.dataset(passages).schema
    cut(newest(store, passages))
    unended(store, passages, 0, "before the power cut")
    store.ensure(passages, schema)
    assert store.count(passages) == 0 and store.files.names("_changing") == []


def test_after_a_kill_without_a_power_cut_a_change_stays(store, passages, committed_once):
    unended(store, passages, committed_once - 1)
    assert driven(store) == []
    assert store.version(passages) == committed_once and store.count(passages) == 2


def test_a_tag_that_a_power_cut_spoilt_can_be_set_again(store, passages, committed_once):
    tag(store, passages, "r1", committed_once)
    cut(Path(store.uri, f"{passages}.lance", "_refs", "tags", "r1.json"))
    tag(store, passages, "r1", committed_once)
    assert tagged(store, passages) == {"r1": committed_once}


def test_a_table_that_was_killed_when_it_was_made_is_made_by_the_next(store, passages):
    schema, manifest = store.dataset(passages).schema, newest(store, passages)
    manifest.rename(manifest.with_name(f"{manifest.name}#1"))  # Lance writes this, and then links it
    (manifest.parent / "latest_version_hint.json").unlink()
    assert not store.has(passages)
    store.ensure(passages, schema)
    assert store.has(passages) and Store.open(store.uri).count(passages) == 0
