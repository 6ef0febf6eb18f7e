"""What is the same value, and what is the same model."""

from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pytest

from raypipe.core.digests import NOT_IDENTITY, model_identity, stable
from raypipe.core.protocols import Model

MODEL = Model(
    "mini",
    "embedder",
    "flagembedding",
    "org/mini",
    "abc",
    "/models/mini",
    "org/mini@abc",
    dim=8,
    pooling="mean",
)


@dataclass(frozen=True, slots=True)
class Cut:
    """A stand-in for a step."""

    child_chars: int
    by: MappingProxyType[str, str]


def test_every_kind_of_value_has_a_form_of_its_own():
    values = [None, True, False, 1, 0, 1.0, "1", "null", "", (), (1,), ("1",), {}, {"1": 1}, {1: "1"}, ((),)]
    assert len({stable(v) for v in values}) == len(values)


def test_order_of_a_mapping_and_its_type_do_not_matter():
    assert stable({"a": 1, "b": 2}) == stable(MappingProxyType({"b": 2, "a": 1}))


def test_a_text_cannot_look_like_two_values():
    assert stable(('a","b',)) != stable(("a", "b"))
    assert stable({"a": 1, "b": 2}) != stable({'a":1,"b': 2})


def test_a_record_is_named_by_its_class_and_all_its_fields():
    one = Cut(200, MappingProxyType({"movie": "x"}))
    assert stable(one) == 'Cut{"by":{"movie":"x"},"child_chars":200}'
    assert stable(one) != stable(replace(one, child_chars=201))


@dataclass
class Open:
    """Not frozen: its value may change after it was named."""

    x: int = 1


@pytest.mark.parametrize(
    "value",
    [[1], {1}, b"x", object(), Open(), Cut, float("nan"), float("inf"), np.float64(1), np.int64(1), len],
)
def test_what_has_no_stable_form_is_refused(value):
    with pytest.raises(TypeError, match="no stable form"):
        stable({"deep": (value,)})


@pytest.mark.parametrize(
    "field", sorted(NOT_IDENTITY - {"adopted"})
)  # tests/runs/test_adoption.py has that one
def test_where_a_model_lies_is_not_identity(field):
    assert model_identity(replace(MODEL, **{field: "elsewhere"})) == model_identity(MODEL)


def test_everything_else_about_a_model_is_identity():
    changes = {
        "kind": "reranker",
        "loader": "sorted",
        "weights": "org/mini@abd",
        "dtype": "bfloat16",
        "dim": 9,
        "pooling": "cls",
        "max_tokens": 256,
        "max_model_len": 9,
        "query_instruction": "q: ",
        "passage_instruction": "p: ",
        "quantization": "fp8",
        "tensor_parallel": 2,
        "adapters": (("calls", "sha256:1"),),
    }
    assert set(changes) | NOT_IDENTITY == set(Model.__match_args__)
    names = {model_identity(replace(MODEL, **{k: v})) for k, v in changes.items()} | {model_identity(MODEL)}
    assert len(names) == len(changes) + 1
    assert all(len(n) == 32 for n in names)
