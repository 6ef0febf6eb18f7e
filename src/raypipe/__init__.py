"""Question answering on a Ray cluster: whole datasets, and single questions with the same logic.

This package is the Python API: each `raypipe COMMAND` as a function. A stub file next to this one lists the
exported names, for this module and for type checkers. A name's module is imported when the name is first
used, so `import raypipe` imports no library. docs/python.md has examples.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"(?m)^from (raypipe\.\S+) import (\w+)")
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
EXPORTS = {name: module for module, name in _IMPORT.findall(_STUB)}
"""Exported name -> module that defines it."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("raypipe")
    if name not in EXPORTS:
        raise AttributeError(f"module 'raypipe' has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(EXPORTS[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *EXPORTS, "__version__"})
