"""The verbs of a recipe: the class of each step that raypipe ships."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from raypipe.core.protocols import CorpusStep, Step
from raypipe.steps.bm25 import Bm25
from raypipe.steps.clean import Clean
from raypipe.steps.compress import Compress
from raypipe.steps.decide import Decide
from raypipe.steps.demote import Demote
from raypipe.steps.dense import Dense
from raypipe.steps.embed import Embed
from raypipe.steps.embed_document import EmbedDocument
from raypipe.steps.examples import Examples
from raypipe.steps.extract import Extract
from raypipe.steps.facts import Facts
from raypipe.steps.function_calls import FunctionCalls
from raypipe.steps.fuse import Fuse
from raypipe.steps.generate import Generate
from raypipe.steps.iterate import Iterate
from raypipe.steps.kg_query import KgQuery
from raypipe.steps.match_calls import MatchCalls
from raypipe.steps.parse import Parse
from raypipe.steps.rerank import Rerank
from raypipe.steps.shortlist import Shortlist
from raypipe.steps.similarity import Similarity
from raypipe.steps.split import Split
from raypipe.steps.tokenize import Tokenize

CORPUS_STEPS: Mapping[str, type[CorpusStep]] = MappingProxyType(
    {
        "parse": Parse,
        "clean": Clean,
        "tokenize": Tokenize,
        "split": Split,
        "embed": Embed,
        "embed_document": EmbedDocument,
    }
)

QUESTION_STEPS: Mapping[str, type[Step]] = MappingProxyType(
    {
        "shortlist": Shortlist,
        "dense": Dense,
        "bm25": Bm25,
        "fuse": Fuse,
        "rerank": Rerank,
        "extract": Extract,
        "generate": Generate,
        "decide": Decide,
        "match_calls": MatchCalls,
        "function_calls": FunctionCalls,
        "kg_query": KgQuery,
        "demote": Demote,
        "facts": Facts,
        "examples": Examples,
        "iterate": Iterate,
        "compress": Compress,
        "similarity": Similarity,
    }
)

HALVES: Mapping[str, Mapping[str, type[Any]]] = MappingProxyType(
    {"corpus": CORPUS_STEPS, "question": QUESTION_STEPS}
)
STEPS: Mapping[str, type[Any]] = MappingProxyType({**CORPUS_STEPS, **QUESTION_STEPS})
