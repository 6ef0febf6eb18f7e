"""The map on disk where there is no more disk."""

import subprocess
import sys

FILLED = """
import resource
from raypipe.core.bounded_rows import DiskMap
from raypipe.core.errors import Unavailable
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    DiskMap().update(map(str, range(200_000)))
except Unavailable as e:
    print(e)
"""


def test_a_full_folder_of_temporary_files_is_named_with_what_helps():
    said = subprocess.run([sys.executable, "-c", FILLED], capture_output=True, text=True, check=True).stdout
    assert "the folder of temporary files, cannot take the ids of what is read" in said
    assert "set TMPDIR to another folder" in said
