"""What questions and pages say: sentences with {words} in files of the package."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import yaml


@functools.cache
def wording(name: str) -> dict[str, Any]:
    """The sentences of `words/NAME.yaml`."""
    text = resources.files("raypipe.synth").joinpath("words", f"{name}.yaml").read_text(encoding="utf-8")
    # libyaml, where PyYAML has it, reads them ten times faster.
    tree: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tree


def frozen(said: dict[str, Any]) -> dict[str, Any]:
    """An entry of such a file with tuples in the place of lists: the fields of a record."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in said.items()}
