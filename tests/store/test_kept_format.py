"""The store and the runs of format 1, as the commit of the release wrote them, are read by this raypipe."""

import json
import tarfile

import pytest
from kept_store import KEPT
from reruns import FAKES, SIZES, Bench

from raypipe.api.cli.main import main
from raypipe.core import arrow
from raypipe.core.errors import ConfError
from raypipe.runs.pipeline.tasks import inline
from raypipe.runs.record import read
from raypipe.runs.release import live, releases, rollback
from raypipe.store import Store

MOST_BYTES = 300_000


@pytest.fixture
def kept(tmp_path):
    assert KEPT.stat().st_size <= MOST_BYTES
    with tarfile.open(KEPT) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path


def test_a_kept_store_shows_its_releases_and_compares_its_runs(kept, capsys):
    store = Store.open(str(kept / "store"))
    first, second = releases(store)
    assert live(store).id == first.id
    recipe, spec = first.opened(store)
    assert recipe.name == "fakes"
    assert spec.store == store.uri
    assert read(kept / "two").tables == dict(second.tables)
    assert len(arrow.question.records(store.dataset("questions").to_table())) == 4
    with pytest.raises(ConfError, match="no earlier release"):
        rollback(store)
    assert main(["compare", str(kept / "one"), str(kept / "two"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == 1
    for command in (["releases", "--store", store.uri], ["view", store.uri, "--json"]):
        assert main(command) == 0
    assert main(["inspect", str(kept / "one"), "--json"]) == 0


def test_a_kept_store_takes_the_next_run_and_keeps_its_old_answers(kept):
    bench = Bench(kept, kept / "world")
    store = Store.open(str(kept / "store"))
    before = store.dataset("answers").to_table().sort_by("key").to_pylist()
    bench.run(FAKES, out="three", pipe=bench.pipeline(FAKES, SIZES, inline))
    after = store.dataset("answers").to_table().to_pylist()
    assert [row for row in before if row not in after] == []
