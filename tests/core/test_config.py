"""A mistake in a configuration file is named with its file, its path inside it, and what was meant."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pytest

from raypipe.core.conf import Conf
from raypipe.core.config import Where, build, read_yaml
from raypipe.core.errors import ConfError


@dataclass(frozen=True, slots=True)
class Inner:
    share: float


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    top: int = 5
    how: Literal["fast", "slow"] = "fast"
    parts: tuple[Inner, ...] = ()
    weights: Mapping[str, float] | None = None
    on: bool = False

    def __post_init__(self):
        if self.top < 1:
            raise ValueError("top must be at least 1")


WHERE = Where("a.yaml", "outer")


def test_a_mapping_becomes_the_dataclass():
    tree = {"name": "x", "top": 2, "parts": [{"share": 1}], "weights": {"a": 2}, "on": True}
    made = build(Outer, tree, WHERE)
    assert made == Outer("x", 2, "fast", (Inner(1.0),), made.weights, True)
    assert dict(made.weights) == {"a": 2.0}


@pytest.mark.parametrize(
    "tree, message",
    [
        ({}, "a.yaml: outer: field 'name' is missing"),
        ({"name": "x", "topp": 2}, "a.yaml: outer: unknown field 'topp'; did you mean 'top'?"),
        ({"name": "x", "top": "2"}, "a.yaml: outer.top: expected a whole number, found text ('2')"),
        ({"name": "x", "top": True}, "a.yaml: outer.top: expected a whole number, found true/false (True)"),
        ({"name": "x", "top": 0}, "a.yaml: outer: top must be at least 1"),
        ({"name": None}, "a.yaml: outer.name: expected text, found nothing"),
        ({"name": "x", "how": "fest"}, "a.yaml: outer.how: expected one of fast, slow, found text ('fest')"),
        ({"name": "x", "parts": {"share": 1}}, "a.yaml: outer.parts: expected a list, found a mapping"),
        (
            {"name": "x", "parts": [{"shard": 1}]},
            "a.yaml: outer.parts[0]: unknown field 'shard'; did you mean 'share'?",
        ),
        (
            {"name": "x", "weights": {"a": "b"}},
            "a.yaml: outer.weights.a: expected a number, found text ('b')",
        ),
        ([], "a.yaml: outer: expected a mapping, found a list"),
    ],
)
def test_a_mistake_is_named_with_its_place(tree, message):
    with pytest.raises(ConfError) as e:
        build(Outer, tree, WHERE)
    assert str(e.value) == message


@pytest.mark.parametrize(
    "text, words",
    [
        ("a: 1\na: 2\n", "'a' occurs twice, again in line 2"),
        ("- 1\n", "expected a mapping at the top, found a list"),
        ("a: [1\n", "is not valid YAML"),
        ("a: !!python/object/apply:os.system [true]\n", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_plain_mapping_is_refused(tmp_path, text, words):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ConfError, match=r"x\.yaml") as e:
        read_yaml(file)
    assert words in str(e.value)


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", 10**400])
def test_a_number_without_an_end_is_refused_where_it_stands(number):
    value = float(number) if isinstance(number, str) else number
    with pytest.raises(ConfError, match=r"share: expected a finite number, found a"):
        build(Inner, {"share": value}, WHERE)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfError, match="cannot be read"):
        read_yaml(tmp_path / "none.yaml")


def test_a_name_is_found_in_the_first_folder_that_has_it_and_a_path_is_itself(tmp_path):
    for folder, text in (("one", "a: 1"), ("two", "a: 2")):
        (tmp_path / folder / "recipes").mkdir(parents=True)
        (tmp_path / folder / "recipes" / "both.yaml").write_text(text)
    (tmp_path / "two" / "recipes" / "late.yaml").write_text("a: 3")
    conf = Conf((tmp_path / "one", tmp_path / "two"))
    assert conf.find("recipes", "both") == tmp_path / "one" / "recipes" / "both.yaml"
    assert conf.find("recipes", "late") == tmp_path / "two" / "recipes" / "late.yaml"
    assert conf.find("recipes", str(tmp_path / "two/recipes/both.yaml")) == tmp_path / "two/recipes/both.yaml"
    with pytest.raises(ConfError, match="no 'lat' under recipes/; did you mean 'late'"):
        conf.find("recipes", "lat")
    with pytest.raises(ConfError, match="no such file"):
        conf.find("recipes", "nowhere/x.yaml")
    with pytest.raises(ConfError, match=r"^both\.yml: no such file"):
        conf.find("recipes", "both.yml")
    with pytest.raises(ConfError, match="two: a folder, expected a file"):
        conf.find("recipes", str(tmp_path / "two"))


def test_a_message_repeats_no_more_of_a_value_than_a_line(tmp_path):
    (tmp_path / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n" * 100)
    with pytest.raises(ConfError, match=r"found text \('root:x.{73}\.\.\.\)$"):
        read_yaml(tmp_path / "passwd")
