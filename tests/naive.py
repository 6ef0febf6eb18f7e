"""A driver for the drill of naive ways: `naive.py ADDRESS FOLDER KILL`. Rows go through Ray Data into a Lance
table with Ray's own checkpoints: workers write files, the driver commits them at the end, and is killed half
way if KILL is 1. Prints how many rows the table has."""

import os
import signal
import sys
import time
import uuid
from pathlib import Path

import lance
import pyarrow as pa
import ray
from lance.fragment import write_fragments
from ray.data import DataContext, Datasink
from ray.data.checkpoint import CheckpointConfig

ROWS = 100


class Fragments(Datasink):
    """Rows to files of a Lance table, committed once by the driver, as Ray's own sink for Lance does it."""

    def __init__(self, uri, kill):
        self._uri, self._driver = uri, os.getpid() if kill else None

    def write(self, blocks, ctx):
        files, done = [], Path(self._uri).parent / "done"
        if self._driver and len(list(done.iterdir())) >= 2:
            time.sleep(1)  # for the checkpoints of those that are done
            os.kill(self._driver, signal.SIGKILL)
        for block in blocks:
            table = block if isinstance(block, pa.Table) else pa.Table.from_pandas(block)
            if table.num_rows:
                files += write_fragments(table.select(["id"]), self._uri)
        (done / uuid.uuid4().hex).touch()
        return files

    def on_write_complete(self, result):
        files = [f for some in result.write_returns for f in some]
        if files:
            operation = lance.LanceOperation.Append(files)
            lance.LanceDataset.commit(self._uri, operation, read_version=1)


def main():
    address, folder, kill = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "1"
    ray.init(address=address, log_to_driver=False)
    uri = str(folder / "rows.lance")
    if not Path(uri).exists():
        lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), uri)
    context = DataContext.get_current()
    context.checkpoint_config = CheckpointConfig("id", str(folder / "checkpoint"))
    (folder / "done").mkdir(exist_ok=True)
    source = folder / "in"
    if not source.exists():
        ray.data.range(ROWS, override_num_blocks=4).write_parquet(str(source))
    ray.data.read_parquet(str(source)).map_batches(lambda b: b).write_datasink(Fragments(uri, kill))
    print("rows", lance.dataset(uri).count_rows())


if __name__ == "__main__":
    main()
