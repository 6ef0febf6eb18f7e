"""A run that fills a Lance table through Ray Data's own checkpointing, and may be killed.

    python naive_checkpoint.py ADDRESS FOLDER [--dies]

Writes FOLDER/rows.lance in blocks. With `--dies` the driver ends itself by SIGKILL once Ray has checkpointed
every row but those of the last block, which wait until FOLDER/died is there.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import lance
import pyarrow as pa
import ray
from lance.fragment import write_fragments
from ray.data import DataContext
from ray.data.block import BlockAccessor
from ray.data.checkpoint import CheckpointConfig
from ray.data.datasource import Datasink

from raypipe.runs.cluster import connection

BLOCKS, ROWS = 4, 25  # of each block


class LanceSink(Datasink):
    """As Ray's own sink for Lance works, which does not run with the Lance of this project: fragments in the
    tasks that write, one commit of all of them on the driver."""

    def __init__(self, folder):
        self._folder = folder

    def write(self, blocks, ctx):
        tables = [BlockAccessor.for_block(b).to_arrow() for b in blocks]
        if not any(t.num_rows for t in tables):
            return []
        table = pa.concat_tables(t for t in tables if t.num_rows)
        if max(table["id"].to_pylist()) >= (BLOCKS - 1) * ROWS:
            while not (self._folder / "died").exists():
                time.sleep(0.1)
        return write_fragments(table, str(self._folder / "rows.lance"))

    def on_write_complete(self, write_result):
        fragments = [f for some in write_result.write_returns for f in some]
        schema = pa.schema([("id", pa.int64())])
        operation = lance.LanceOperation.Overwrite(schema, fragments)
        lance.LanceDataset.commit(str(self._folder / "rows.lance"), operation)


def dies_when_checkpointed(folder):
    """Ends this process as soon as every row is checkpointed that does not wait."""
    while True:
        files = [f.read_bytes() for f in folder.glob("checkpoint/*.parquet")]
        if len(files) == BLOCKS - 1 and all(f.endswith(b"PAR1") for f in files):  # written to their end
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)


def main(address, folder, dies):
    connection.connect(address)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.checkpoint_config = CheckpointConfig("id", str(folder / "checkpoint"))
    context.checkpoint_config.checkpoint_actor_memory_bytes = 1 << 20
    if dies:
        threading.Thread(target=dies_when_checkpointed, args=[folder], daemon=True).start()
    little = {"num_cpus": 0.1}  # the task that waits leaves the others their room
    rows = ray.data.range(BLOCKS * ROWS, override_num_blocks=BLOCKS)
    rows.write_datasink(LanceSink(folder), ray_remote_args=little)
    print("finished", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), "--dies" in sys.argv)
