"""What Lance, Arrow and the file system raise is classed once, and is never a row's."""

import os
import pickle
import re

import pyarrow as pa
import pytest
from checkout import SRC

from raypipe.core.errors import DiskFull, Unavailable
from raypipe.core.textfile import replacing
from raypipe.store import StoreError
from raypipe.store.errors import StoreUnavailable, reaching

SLOW_DOWN = "External error: LanceError(IO): Generic S3 error: 503 Service Unavailable: SlowDown"


READS = re.compile(r"\.(count_rows|to_batches|scanner)\(|\bdataset\([^)]*\)\.to_table\(")


def test_only_the_store_and_the_mender_of_the_memo_read_tables_of_lance_themselves():
    """Everyone else goes through `Store`, which gives trouble its class."""
    elsewhere = [f for f in SRC.rglob("*.py") if f.parent.name != "store" and f.name != "mend.py"]
    assert len(elsewhere) > 200
    assert not [str(f) for f in elsewhere if READS.search(f.read_text())]


class PanicException(BaseException):
    """As Lance's Rust raises it."""


@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowInvalid(SLOW_DOWN),
        OSError(SLOW_DOWN),
        ValueError(SLOW_DOWN),
        RuntimeError(SLOW_DOWN),
        TimeoutError(SLOW_DOWN),
        PanicException(SLOW_DOWN),
    ],
    ids=lambda e: type(e).__name__,
)
def test_whatever_a_store_in_trouble_raises_is_unavailable(error):
    said = r"table t cannot be reached now: .*SlowDown"
    with pytest.raises(StoreUnavailable, match=said) as raised, reaching("table t"):
        raise error
    assert raised.value.exit_code == Unavailable.exit_code == 69
    sent = pickle.loads(pickle.dumps(raised.value))  # as a worker hands it to its driver
    assert type(sent) is StoreUnavailable and str(sent) == str(raised.value)


def test_a_full_disk_and_what_has_a_class_keep_theirs():
    with pytest.raises(DiskFull, match="the disk is full"), reaching("table t"):
        raise OSError(28, "No space left on device")
    with pytest.raises(DiskFull, match="the disk is full"), reaching("table t"):
        raise OSError("LanceError(IO): No space left on device (os error 28)")
    for error in (StoreError("no index"), KeyboardInterrupt()):
        with pytest.raises(type(error)), reaching("table t"):
            raise error


@pytest.mark.parametrize(("error", "kind"), [(5, Unavailable), (28, DiskFull)])
def test_a_file_of_a_run_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path, error, kind):
    file = tmp_path / "run.json"
    file.write_text("old")
    with pytest.raises(kind, match=re.escape(str(file))), replacing(file) as draft:
        draft.write_text("new")
        raise OSError(error, os.strerror(error))
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]
