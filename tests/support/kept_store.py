"""Writes the store and the runs that every later raypipe must read: kept/format-1.tar.xz.

    python tests/support/kept_store.py

It was written once, by the commit of the release. Writing it again would make the test that reads it worth
nothing: a new format gets a file of its own, and the old file stays.
"""

import shutil
import sys
import tarfile
from pathlib import Path

from checkout import SUPPORT
from reruns import FAKES, Bench

from raypipe.contrib.world.write import write
from raypipe.runs.record import read
from raypipe.runs.release import promote, rollback
from raypipe.store import Store

KEPT = SUPPORT / "kept/format-1.tar.xz"
SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")


def build(folder: Path) -> None:
    """Makes a store with two runs and two releases, of which the first is live, in an empty folder."""
    write(folder / "world", 4, pages=3, seed=9, page_chars=1000)
    bench = Bench(folder, folder / "world")
    store = Store.create(str(folder / "store"))
    for name, recipe in (("one", SURE), ("two", FAKES)):
        bench.run(recipe, out=name)
        promote(store, read(folder / name), [])
    rollback(store)


def main() -> int:
    folder = Path("/tmp/raypipe-kept")  # stands in the records of its runs
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    build(folder)
    KEPT.parent.mkdir(exist_ok=True)
    with tarfile.open(KEPT, "w:xz") as tar:
        for name in ("store", "one", "two", "world/questions.jsonl"):
            tar.add(folder / name, arcname=name)
    print(KEPT, KEPT.stat().st_size, "bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
