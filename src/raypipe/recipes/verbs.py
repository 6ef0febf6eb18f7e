"""The verbs of a recipe: the class of each step, of the core and of plugins."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from raypipe.core.plugins import Plugin, Registry
from raypipe.core.protocols import CorpusStep, Step
from raypipe.recipes.step_contract import step_class
from raypipe.steps.bm25 import Bm25, Tokenize
from raypipe.steps.compress import Compress
from raypipe.steps.decide import Decide
from raypipe.steps.dense import Dense, Similarity
from raypipe.steps.embed import Embed, EmbedContextual, EmbedDocument
from raypipe.steps.examples import Examples
from raypipe.steps.extract import Extract
from raypipe.steps.fuse import Fuse, ReadAll
from raypipe.steps.generate import Generate
from raypipe.steps.iterate import Iterate
from raypipe.steps.parse import Clean, Parse
from raypipe.steps.rerank import Listwise, Rerank, Shortlist
from raypipe.steps.split import Split
from raypipe.steps.stand_alone import StandAlone

CORPUS_STEPS: Registry[type[CorpusStep]] = Registry(
    "corpus_steps",
    {
        "parse": Parse,
        "clean": Clean,
        "tokenize": Tokenize,
        "split": Split,
        "embed": Embed,
        "embed_document": EmbedDocument,
        "embed_contextual": EmbedContextual,
    },
    "a step",
)

QUESTION_STEPS: Registry[type[Step]] = Registry(
    "question_steps",
    {
        "shortlist": Shortlist,
        "dense": Dense,
        "bm25": Bm25,
        "fuse": Fuse,
        "rerank": Rerank,
        "extract": Extract,
        "generate": Generate,
        "decide": Decide,
        "examples": Examples,
        "iterate": Iterate,
        "compress": Compress,
        "similarity": Similarity,
        "listwise": Listwise,
        "read_all": ReadAll,
        "stand_alone": StandAlone,
    },
    "a step",
)

HALVES: Mapping[str, Registry[Any]] = MappingProxyType({"corpus": CORPUS_STEPS, "question": QUESTION_STEPS})
STEPS: Mapping[str, type[Any]] = ChainMap(QUESTION_STEPS, CORPUS_STEPS)  # type: ignore[arg-type]
"""Verb -> class. Going over it imports the steps of all plugins."""


def step_of(half: str, verb: str) -> tuple[type[Any], Plugin | None]:
    """The class of a verb; and where it comes from, if the digest of its source is part of its identity.
    Raises KeyError for a verb that the half does not have, ConfError for what is no step."""
    added = HALVES[half].added(verb)
    return (HALVES[half][verb], None) if added is None or added.table.locked else step_class(added.value)
