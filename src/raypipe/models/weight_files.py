"""What stands in a model's files without loading them: JSON objects, and the headers of safetensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.models.folder import WEIGHTS, matching


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor, as the header of its file describes it."""

    dtype: str  # as safetensors calls it: F32, F16, BF16, U8, ...
    shape: tuple[int, ...]
    start: int  # byte in its file
    end: int  # byte behind it


def json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelMissing where there is no file, ConfError for another form."""
    if not path.is_file():
        raise ModelMissing(f"{path.parent}: expected {path.name}, found none. Fetch the folder again")
    try:
        tree = json.loads(path.read_bytes())
    except ValueError as e:
        raise ConfError(f"{path}: not valid JSON: {e}. Fetch the folder again") from e
    if not isinstance(tree, dict):
        raise ConfError(
            f"{path}: expected a JSON object, found {type(tree).__name__}. Fetch the folder again"
        )
    return tree


def headers(path: Path) -> dict[str, TensorHeader]:
    """The tensors of a safetensors file, by name. Raises ModelMissing for a file that is not whole: a
    download that broke off leaves one whose header promises more bytes than there are."""
    size = path.stat().st_size
    with path.open("rb") as f:
        head = int.from_bytes(f.read(8), "little")
        text = f.read(head) if head < size else b""
    try:
        found = {
            name: TensorHeader(
                str(t["dtype"]), tuple(map(int, t["shape"])), *(8 + head + int(n) for n in t["data_offsets"])
            )
            for name, t in json.loads(text).items()
            if name != "__metadata__"
        }
    except (ValueError, AttributeError, TypeError, KeyError):
        found = {"": TensorHeader("", (), 0, -1)}
    if max((t.end for t in found.values()), default=8 + head) != size:
        raise ModelMissing(
            f"{path}: expected whole safetensors, found {size} bytes that end early. Fetch it again"
        )
    return found


def folder_headers(folder: Path) -> dict[str, TensorHeader]:
    """The tensors of all weight files of a model's folder, by name. Raises as `headers`."""
    found: dict[str, TensorHeader] = {}
    for shard in matching(folder, (WEIGHTS,)):
        found |= headers(shard)
    return found
