"""The obvious ways to fill a table from many workers lose rows or double them in the drill that ours passes
(tests/store/test_commit.py, bench/drills/kills.py): that is why the store has a protocol of its own."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import lance
import pyarrow as pa
import pytest

pytestmark = pytest.mark.drill
IDS = list(range(100))
CHECKPOINT = Path(__file__).with_name("naive_checkpoint.py")


def counted(uri):
    """Rows of a table, and how many different ones."""
    ids = lance.dataset(uri).to_table()["id"].to_pylist()
    return len(ids), len(set(ids))


def test_adding_in_a_worker_that_is_killed_doubles_rows_and_the_job_is_green(tmp_path, local_ray):
    import lancedb

    lancedb.connect(str(tmp_path)).create_table("rows", schema=pa.schema([("id", pa.int64())]))

    @local_ray.remote(max_retries=2)
    def adds(folder, ids, marker):
        lancedb.connect(folder).open_table("rows").add(pa.table({"id": pa.array(ids, pa.int64())}))
        if not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return len(ids)

    assert local_ray.get(adds.remote(str(tmp_path), IDS, str(tmp_path / "died"))) == 100
    assert counted(str(tmp_path / "rows.lance")) == (200, 100)


def test_merging_the_same_new_keys_from_several_workers_doubles_rows_without_an_error(tmp_path):
    uri, workers = str(tmp_path / "rows.lance"), 4
    for _ in range(5):  # they must be at it at once
        lance.write_dataset(pa.table({"id": pa.array([-1], pa.int64())}), uri, mode="overwrite")
        gate = Barrier(workers)

        def merges(_, gate=gate):
            table = lance.dataset(uri)
            gate.wait()
            merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(pa.table({"id": pa.array(IDS, pa.int64())}))

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(merges, range(workers)))
        rows, distinct = counted(uri)
        if rows > distinct:
            break
    assert distinct == 101 and rows > distinct, "in none of five races"


def test_rays_checkpointing_marks_rows_as_done_that_no_commit_ever_names(tmp_path, local_ray):
    address = local_ray.get_runtime_context().gcs_address
    run = [sys.executable, str(CHECKPOINT), address, str(tmp_path)]
    killed = subprocess.run([*run, "--dies"], capture_output=True, text=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (tmp_path / "died").touch()
    resumed = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0 and "finished" in resumed.stdout, resumed.stderr
    rows, distinct = counted(str(tmp_path / "rows.lance"))
    assert rows == distinct == 25, "of 100, and the job is green"
