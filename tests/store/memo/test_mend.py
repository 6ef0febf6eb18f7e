"""Damaged files of memo tables: counted, mended, and never the end of a run."""

import json

import pytest
from reruns import FAKES

from raypipe.store import Store
from raypipe.store.memo.disk import mend_memo

pytestmark = pytest.mark.slow


def cut(store, folder, newest=False):
    """Halves files of a folder of a table: all of them, or the newest manifest."""
    names = [n for n in store.files.walk(folder) if n.endswith((".lance", ".manifest"))]
    for name in names[:1] if newest else names:  # the newest version's manifest sorts first
        content = store.files.read(name)
        store.files.write(name, content[: len(content) // 2])


@pytest.mark.drill
@pytest.mark.parametrize(("folder", "newest"), [("_indices", False), ("_versions", True), ("data", True)])
def test_a_run_over_a_damaged_memo_counts_it_and_computes_what_is_lost(bench, folder, newest):
    store = Store.open(str(bench.folder / "store"))
    before = store.dataset("answers").to_table().num_rows
    tables = [t for t in store.files.names("") if t.startswith(("embeddings-", "scores-"))]
    for table in tables:
        cut(store, f"{table}/{folder}", newest)
    pipe = bench.pipeline(FAKES.replace("child_chars: 200", "child_chars: 190"))
    counts, _ = bench.run(pipe=pipe)
    report = json.loads((bench.folder / "out/run.json").read_text())
    assert report["memo_damaged"] == len(tables) == 2
    assert counts["embed"][1] and store.dataset("answers").to_table().num_rows == 2 * before
    assert mend_memo(store) == 0
    counts, _ = bench.run(pipe=pipe)
    assert all(c == (0, 0) for c in counts.values())


def test_what_a_kill_left_of_a_table_while_it_was_made_goes_and_counts_as_no_loss(bench):
    store = Store.open(str(bench.folder / "store"))
    made = next(t for t in store.files.names("") if t.startswith("embeddings-"))
    half = f"embeddings-{0:032x}.lance"
    store.files.write(f"{half}/_versions/18446744073709551614.manifest#1", b"begun")
    assert mend_memo(store) == 0
    assert half not in store.files.names("") and made in store.files.names("")
    assert store.files.names("_memo_losses") == []
