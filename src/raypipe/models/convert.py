"""`python -m raypipe.models.convert FOLDER`: converts pytorch_model.bin to model.safetensors, once, in the
folder and in those of its modules.

For repositories that have pickles alone (bge-m3). The only place that opens one, with torch's unpickler that
admits tensors and plain containers and nothing that could run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from raypipe.core.errors import DataError, RaypipeError
from raypipe.models.folder import modules


def convert(folder: Path) -> list[Path]:
    """Returns the new files: of the folder, and of modules that have a pickle and no safetensors. Raises
    DataError for a pickle that holds anything but tensors, and where there is none."""
    inside = [folder / module for module in modules(folder) if module]
    sources = [f / "pytorch_model.bin" for f in inside if not (f / "model.safetensors").is_file()]
    own = folder / "pytorch_model.bin"
    found = [p for p in sources if p.is_file()]
    if own.is_file():
        found.insert(0, own)
    if not found:
        raise DataError(
            f"{own}: no such file. Sharded pickles are not converted: load and save them with transformers"
        )
    return [_converted(source) for source in found]


def _converted(source: Path) -> Path:
    target = source.with_name("model.safetensors")
    try:
        tensors = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as e:  # the unpickler raises many types, each for a file that must not be opened
        raise DataError(f"{source}: refused: {e}") from e
    if not isinstance(tensors, dict) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
        raise DataError(f"{source}: expected a mapping of names to tensors, found something else")
    # safetensors wants tensors that share no memory.
    partial = target.with_suffix(".partial")
    save_file(
        {name: t.detach().clone().contiguous() for name, t in tensors.items()}, partial, {"format": "pt"}
    )
    return partial.rename(target)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m raypipe.models.convert FOLDER")
    try:
        print(*convert(Path(sys.argv[1])), sep="\n")
    except RaypipeError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
