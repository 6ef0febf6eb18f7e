"""What a corpus step is told beyond its kind: how far a text is read, and in which case."""

import asyncio

import numpy as np
import pyarrow as pa
import pytest
from shelf import HASH

from raypipe.core.arrow import fault_column
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.fake import HashEmbedder
from raypipe.models.kit import LocalKit
from raypipe.steps.embed import Embed
from raypipe.steps.split import Split

WORDS = Model("words", "tokenizer", "whitespace", "", "", "", "whitespace@1")


def built(step, **columns):
    rows = len(next(iter(columns.values())))
    table = pa.table({**columns, "fault": fault_column([None] * rows)})
    return asyncio.run(step.open(LocalKit(None))(table))


def test_what_stands_after_the_first_tokens_of_a_text_is_in_no_chunk():
    texts = ["one two three four five six", "one two", "one two three", "é" * 9, ""]
    step = Split(child_chars=9, text_tokens=3, tokenizer=WORDS)
    out = built(step, source=[f"s{i}" for i in range(5)], text=texts).to_pylist()
    s0, s1, s2 = ["one two", "three"], ["one two"], ["one two", "three"]
    expected = [("s0", c) for c in s0] + [("s1", c) for c in s1] + [("s2", c) for c in s2] + [("s3", "é" * 9)]
    assert [(r["source"], r["chunk_text"]) for r in out] == expected
    assert all(texts[int(r["source"][1])][r["start"] : r["end"]] == r["chunk_text"] for r in out)


def test_parents_end_there_too():
    text = " ".join(f"w{i}" for i in range(100))
    step = Split(child_chars=10, parent_chars=50, text_tokens=20, tokenizer=WORDS)
    ends = built(step, source=["s"], text=[text])["parent_end"].to_pylist()
    assert max(ends) == text.index(" w20")


@pytest.mark.parametrize("fields", [{"text_tokens": 9}, {"tokenizer": WORDS}, {"text_tokens": 0}])
def test_a_length_in_tokens_needs_something_that_counts_them(fields):
    with pytest.raises(ValueError, match=r"both or neither|at least 1"):
        Split(child_chars=10, **fields)


def test_vectors_can_be_of_the_text_in_lower_case_while_the_text_stays():
    class Cased(LocalKit):
        """Its embedder knows case."""

        def embedder(self, model):
            async def embed(texts, role):
                return HashEmbedder(model.dim).embed([t.replace("A", "x") for t in texts], role)

            return embed

    table = pa.table(
        {
            "chunk_text": ["An Apple", None],
            "fault": fault_column([None, Fault("split", "made_up", "", False)]),
        }
    )
    for lower, text in ((True, "an apple"), (False, "xn xpple")):
        out = asyncio.run(Embed(model=HASH, lower=lower).open(Cased(None))(table))
        expected = HashEmbedder(HASH.dim).embed([text], "passage")[0]
        np.testing.assert_array_equal(np.array(out["vector"].to_pylist()[0], np.float32), expected)
        assert out["vector"].to_pylist()[1] is None
        assert out["chunk_text"].to_pylist()[0] == "An Apple"
