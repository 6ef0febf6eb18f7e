"""Types of arguments: what a text on the command line is read as."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from raypipe.core.config import did_you_mean
from raypipe.core.plugins import is_path

T = TypeVar("T")


def one_of(*shipped: str) -> Callable[[str], str]:
    """An argument type: one of these names, or the path of code from outside, MODULE:NAME."""

    def read(text: str) -> str:
        if text in shipped or is_path(text):
            return text
        hint = did_you_mean(text, shipped)
        raise argparse.ArgumentTypeError(f"unknown value {text!r}; {hint}, or MODULE:NAME of your own")

    return read


def _number(kind: type[T], fits: Callable[[T], bool], said: str, name: str) -> Callable[[str], T]:
    """An argument type: numbers of a kind that fit. `name`: as argparse calls one that cannot be read."""

    def read(text: str) -> T:
        value = kind(text)  # type: ignore[call-arg]
        if not fits(value):
            raise argparse.ArgumentTypeError(f"expected {said}, found {text.strip()}")
        return value

    read.__name__ = name
    return read


def names(text: str) -> list[str]:
    """An argument type: names with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


FORMATS = ("crag", "beir", "synth", "qasper", "oag", "warc", "rows")
NAMED: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "path": Path,
    "names": names,
    "above_0": _number(float, lambda x: 0 < x < math.inf, "a number above 0", "above_0"),
    "share": _number(float, lambda x: 0 < x <= 1, "a share above 0 and at most 1", "share"),
    "share_or_0": _number(float, lambda x: 0 <= x <= 1, "a share from 0 to 1", "share from 0 to 1"),
    "rule": one_of("official", "accuracy"),
    "kind": one_of("crag", "qa", "qasper", "ranking"),
    "format": one_of(*FORMATS),
    "format_or_files": one_of(*FORMATS, "files"),
}


def read_as(name: str) -> Callable[[str], Any]:
    """The argument type of a name: one of NAMED, or whole numbers: `1..` from 1, `0..9` from 0 to 9."""
    if name in NAMED:
        return NAMED[name]
    least, most = (int(n) if n else None for n in name.split(".."))
    assert least is not None
    if most is None:
        return _number(int, lambda n: n >= least, f"at least {least}", "whole number")
    return _number(int, lambda n: least <= n <= most, f"{least} to {most}", "whole number")
