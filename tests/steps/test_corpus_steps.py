"""Tokenise, split and embed on columns."""

import asyncio
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from shelf import HASH

from raypipe.core.arrow import fault_column, id_column, id_texts
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.fake import HashEmbedder
from raypipe.models.kit import LocalKit
from raypipe.steps.bm25 import Tokenize
from raypipe.steps.embed import Embed
from raypipe.steps.split import Split
from raypipe.text.words import analyse

WHITESPACE = Model("whitespace", "tokenizer", "whitespace", "", "", "", "whitespace@1")
BROKEN = Fault("parse", "timeout", "took too long", False)
TEXT = "aa bb cc dd ee ff"


def texts(*values):
    """Parsed texts; None is a source that could not be parsed."""
    return pa.table(
        {
            "source": id_column(f"{i:032x}" for i in range(len(values))),
            "text": pa.array(values, pa.large_string()),
            "fault": fault_column([BROKEN if v is None else None for v in values]),
        }
    )


def run(step, table, kit=None):
    return asyncio.run(step.open(kit or LocalKit(None))(table))


def test_tokenise_keeps_the_words_of_each_text_and_where_they_start():
    table = run(Tokenize(), texts("Films of Rome", None, "", "A film"))
    words, starts = table["words_stems"].to_pylist(), table["starts_stems"].to_pylist()
    assert words[0] == analyse("Films of Rome", "stems")[0].tolist() and starts[0] == [0, 9]
    assert words[1] is None and starts[1] is None and words[2] == []
    assert (words[3], starts[3]) == (words[0][:1], [2])
    assert table.schema.field("words_stems").type == pa.list_(pa.uint64())


def test_both_analyzers_can_stand_side_by_side():
    table = run(Tokenize(words="plain"), run(Tokenize(), texts("Films of Rome")))
    assert {"words_stems", "words_plain", "starts_plain"} <= set(table.column_names)


def test_children_name_their_source_and_parent():
    rows = run(Split(child_chars=5, parent_chars=11, parent_overlap=5), texts(TEXT)).to_pylist()
    assert [(r["chunk_text"], TEXT[r["parent_start"] : r["parent_end"]]) for r in rows] == [
        ("aa bb", "aa bb cc dd"),
        ("cc dd", "aa bb cc dd"),
        ("cc dd", "cc dd ee ff"),
        ("ee ff", "cc dd ee ff"),
    ]
    assert {r["source"] for r in rows} == {bytes(16)}
    assert all(TEXT[r["start"] : r["end"]] == r["chunk_text"] for r in rows)


@pytest.mark.parametrize(
    "step",
    [
        Split(child_chars=5),
        Split(tokens=2, tokenizer=WHITESPACE),
        Split(by="sentence"),
    ],
)
def test_without_parents_the_passage_is_the_chunk(step):
    rows = run(step, texts(TEXT)).to_pylist()
    assert rows and all((r["start"], r["end"]) == (r["parent_start"], r["parent_end"]) for r in rows)


def test_token_windows_are_counted_by_the_tokenizer():
    rows = run(Split(tokens=4, tokenizer=WHITESPACE), texts(TEXT)).to_pylist()
    assert [r["chunk_text"] for r in rows] == ["aa bb cc dd", "ee ff"]


def test_an_empty_text_has_no_chunk_and_a_fault_passes_through():
    table = run(Split(child_chars=5), texts("", None, "aa"))
    assert id_texts(table["source"]) == [f"{1:032x}", f"{2:032x}"]
    first, _ = table.to_pylist()
    assert first["fault"]["reason"] == "timeout" and first["start"] is None and first["chunk_text"] is None


@pytest.mark.parametrize(
    "fields, message",
    [
        ({}, "found none"),
        ({"child_chars": 5, "by": "sentence"}, "child_chars and by: sentence"),
        ({"child_chars": 5, "child_overlap": 5}, "child_overlap: expected 0 to less than child_chars"),
        ({"child_chars": 50, "parent_chars": 5}, "at most parent_chars"),
        ({"tokens": 5}, "both or neither"),
        ({"child_chars": 5, "overlap": 2}, "overlap: expected tokens with it"),
        ({"tokens": 0, "tokenizer": WHITESPACE}, "at least 1"),
        ({"by": "sentence", "parent_chars": 10}, "expected child_chars with it"),
    ],
)
def test_a_split_that_cannot_be_is_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        Split(**fields)


class CountingKit(LocalKit):
    """Embeds, counts the texts, and spoils the vectors of some words."""

    def __init__(self):
        super().__init__(None)
        self.asked = []

    def embedder(self, model):
        spoil = {"nan": np.nan, "inf": np.inf, "zero": 0.0}

        async def embed(texts, role):
            self.asked.append((list(texts), role))
            vectors = HashEmbedder(model.dim).embed(texts, role)
            for vector, text in zip(vectors, texts, strict=True):
                if text in spoil:
                    vector[:] = spoil[text]
            return vectors

        return embed


def chunks(*values):
    return run(Split(child_chars=8), texts(*values))


def test_equal_chunks_are_embedded_once_and_get_equal_vectors():
    kit = CountingKit()
    table = run(Embed(model=HASH), chunks("aa", "bb", None, "aa"), kit)
    assert kit.asked == [(["aa", "bb"], "passage")]
    vectors = table["vector"].to_pylist()
    assert vectors[0] == vectors[3] != vectors[1] and vectors[2] is None
    assert table.schema.field("vector").type == pa.list_(pa.float32(), HASH.dim)


def test_a_vector_without_a_direction_is_the_rows_fault():
    table = run(Embed(model=HASH), chunks("aa", "nan", "inf", "zero", "bb"), CountingKit())
    reasons = [f and f["reason"] for f in table["fault"].to_pylist()]
    assert reasons == [None, "bad_vector", "bad_vector", "bad_vector", None]
    bad = table.to_pylist()[1]
    assert bad["source"].hex() == f"{1:032x}" and "characters 0 to 3" in bad["fault"]["detail"]
    assert all(v is None for k, v in bad.items() if k not in ("source", "fault"))


def test_vectors_of_another_length_than_the_entry_says_stop_the_run():
    class Longer(CountingKit):
        def embedder(self, model):
            return super().embedder(replace(model, dim=model.dim + 1))

    with pytest.raises(ConfError, match="expected 1 vectors of 64 numbers"):
        run(Embed(model=HASH), chunks("aa"), Longer())


def test_embed_wants_an_embedder():
    with pytest.raises(ValueError, match="expected an embedder"):
        Embed(model=WHITESPACE)
