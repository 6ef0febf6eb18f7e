"""An object store that refuses what it is asked while questions are answered: busy, or with expired keys.

That is no row's fault. Refused for a moment, the run waits and is whole; refused for good, it stops as
unavailable, and the next one does the rest.
"""

from dataclasses import dataclass, replace

import pytest
from buckets import ARROW, BUSY, CUT, EXPIRED, LANCE, Bucket, bucket_of
from reruns import Bench

from raypipe.core.errors import Unavailable
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.fault_budget import row_faults
from raypipe.evaluation.golds import questions_of
from raypipe.evaluation.options import EvalOptions
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.tasks import inline
from raypipe.store import Store
from raypipe.store.errors import StoreInUse, StoreUnavailable
from raypipe.store.files import LEASES
from raypipe.store.lease import claims

pytestmark = pytest.mark.slow


def drill(value, id):
    return pytest.param(value, id=id, marks=pytest.mark.drill)


@dataclass
class Remote:
    """The invented questions and the fakes, over a store in a bucket."""

    bench: Bench
    bucket: Bucket
    pipe: Pipeline

    def run(self, refused, out):
        """Answers everything again; the store refuses so from when questions are asked until the run ends."""
        server, recipe = self.bucket.server, self.pipe.recipe.digest()

        def runner(verb, work, tasks):
            if verb == "answer":
                server.refuse(*refused)
            yield from inline(verb, work, tasks)

        if self.pipe.store.has("answers"):
            self.pipe.store.forget("answers", "recipe", [recipe])
        pipe = replace(self.pipe, runner=runner)
        try:
            return evaluate(
                pipe, [self.bench.world], self.bench.folder / out, EvalOptions("crag", rule="official")
            )
        finally:
            server.left = 0

    def undone(self):
        """Rows that are blamed, and what became of the questions."""
        lost = row_faults(self.pipe, list(questions_of(self.pipe, None, None)), {})
        return lost.rows, [(c.done, c.failed, c.pending) for c in lost.counts if c.kind == "questions"]


@pytest.fixture(scope="module")
def remote(world, tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("refused"), world)
    with bucket_of("raypipe-refused") as bucket:
        store, here = Store.create(f"{bucket.uri}/store"), bench.pipeline()
        worker = replace(here.worker, store=store.uri, wait_s=0.01)
        pipe = replace(here, store=store, worker=worker)
        yield Remote(bench, bucket, pipe)


@pytest.mark.drill
@pytest.mark.parametrize(
    "refused",
    [
        drill((EXPIRED, 2, LANCE), id="expired-tables"),
        drill((EXPIRED, 2, ARROW), id="expired-files"),
        drill((BUSY, 3, LANCE), id="busy-tables"),
        drill((BUSY, 3, ARROW), id="busy-files"),
        drill((CUT, 3, LANCE), id="cut-tables"),
        pytest.param((CUT, 3, ARROW), id="cut-files"),
    ],
)
def test_what_is_refused_for_a_moment_is_asked_for_again_and_the_run_is_whole(remote, ran, tmp_path, refused):
    done = remote.run(refused, tmp_path)
    assert remote.bucket.server.refused == refused[1]
    assert remote.undone() == ((), [(6, 0, 0)])
    assert done.folder.predictions.read_text() == (ran.folder / "out/predictions.jsonl").read_text()


@pytest.mark.parametrize("whom", [drill("", id="all"), drill(LANCE, id="tables")])
def test_keys_that_stay_expired_stop_the_run_and_with_new_ones_the_next_is_whole(remote, ran, tmp_path, whom):
    with pytest.raises(Unavailable, match="run the same command again when the store is well") as stopped:
        remote.run((EXPIRED, 1_000_000, whom), tmp_path / "stopped")
    assert stopped.value.exit_code == 69 and remote.bucket.server.refused > 1
    assert remote.undone() == ((), [(0, 0, 6)])
    done = remote.run((EXPIRED, 0), tmp_path / "next")
    assert remote.undone() == ((), [(6, 0, 0)])
    assert done.folder.predictions.read_text() == (ran.folder / "out/predictions.jsonl").read_text()


def test_a_refused_claim_is_unavailable_and_never_taken_for_one_that_nobody_holds(remote):
    store = remote.pipe.store
    with store.lease("driver", "first"):
        [sign] = claims(store.files, LEASES)
        store.files.remove(f"{LEASES}/{sign}")  # as before its driver, which has claimed it, writes the file
        remote.bucket.server.refuse(EXPIRED, 1_000_000, LANCE)
        with pytest.raises(StoreUnavailable), Store.open(store.uri).lease("driver", "second"):
            pass
        remote.bucket.server.left = 0
        with (
            pytest.raises(StoreInUse, match="in use by first"),
            Store.open(store.uri).lease("driver", "third"),
        ):
            pass
