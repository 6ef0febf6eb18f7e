"""Approximate search: how a recipe asks for it, and what was measured of it. Imports no library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Approximate:
    """How a whole snapshot is searched by an approximate index in place of the exact product."""

    index: Literal["ivf_rq"]  # LanceDB's inverted file with RaBitQ codes; `raypipe ann` builds it
    probes: int  # partitions that are looked into for a question
    refine: int  # times `top` candidates are scored again with their whole vectors
    min_recall: float  # 0..1: least share of the exact best that any measured question must find

    def __post_init__(self) -> None:
        if self.probes < 1 or self.refine < 1:
            raise ValueError(f"probes and refine: expected at least 1, found {self.probes} and {self.refine}")
        if not 0 <= self.min_recall <= 1:
            raise ValueError(f"min_recall: expected 0 to 1, found {self.min_recall}")


@dataclass(frozen=True, slots=True)
class AnnRecall:
    """What an approximate search found of the exact product's best, measured over some questions."""

    index: str  # its name, which is its identity
    top: int
    probes: int
    refine: int
    questions: int
    mean: float  # of the shares of the exact best, 0..1
    fifth: float  # 5 % of the questions have at most this share
    worst: float
    worst_question: str  # its id
