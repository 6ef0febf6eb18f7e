"""Rows of training data that a prompt may show as examples: plain values.

Knows nothing else. The file that holds them is read by `readers.example_pool`; a step meets them only
through its kit (`protocols.Kit.pool`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolRef:
    """One entry of graphs.yaml of kind examples, resolved: a file of training rows."""

    name: str  # in graphs.yaml; not identity
    where: str  # the file; not identity
    version: str  # digest of the file
    size: int  # rows in it; `version` says it, too


@dataclass(frozen=True, slots=True)
class ExampleRow:
    question: str
    answer: str
    document: str = ""  # url or id of the document that it asks about; "": of none
    explanation: str = ""  # why the answer is right, where one was stored
