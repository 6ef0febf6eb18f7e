"""Constraints: what compiles, what can end, how long it gets."""

from __future__ import annotations

import json

import pytest
import yaml
from checkout import ROOT

from raypipe.core.errors import ConfError
from raypipe.core.llm import Choice, Grammar, JsonSchema, Regex
from raypipe.models.constraint import SEPARATORS, longest_reply, schema_text

CALLS = """
start: call (";" call)~0..2
call: NAME "(" [ARG ("," ARG)~0..3] ")"
NAME: /[a-z]{1,8}/
ARG: "'" /[^']{0,10}/ "'"
"""


def schema(**properties: object) -> JsonSchema:
    return JsonSchema(json.dumps({"type": "object", "properties": properties, "required": list(properties)}))


@pytest.mark.parametrize(
    ("constraint", "longest"),
    [
        (Choice(("movie", "other", "é")), 5),
        (Regex("[a-z]{1,3}(foo|é)?"), 6),
        (Regex("(a|bb)(c{2,3}){0,2}"), 8),
        (Grammar('start: "a" b?\nb: "q"i ~ 2..3'), 4),
        (Grammar('start: a\na: b\nb: a | "x"'), 1),  # a rule that leads back without growing
        (Grammar(CALLS), 3 * (8 + 2 + 4 * 42 + 3) + 2),
        (schema(ok={"type": "boolean"}), len('{"ok":false}')),
        (schema(n={"type": "integer", "minimum": 0, "maximum": 99}), len('{"n":99}')),
        (schema(a={"enum": ["True", "False"]}), len('{"a":"False"}')),
        (schema(a={"type": "string", "pattern": "^[a-z]{1,4}$"}), len('{"a":""}') + 4),
        (schema(a={"type": "string", "maxLength": 5}), len('{"a":""}') + 5 * 4),
        (
            schema(a={"type": "array", "items": {"type": "boolean"}, "maxItems": 2}),
            len('{"a":[false,false]}'),
        ),
    ],
    ids=str,
)
def test_a_bounded_constraint_says_how_long_a_reply_gets(constraint, longest):
    assert longest_reply(constraint) == longest


@pytest.mark.parametrize(
    "constraint",
    [
        Regex("a+"),
        Regex("a*b"),
        Regex("a{3,}"),
        Grammar('start: "a" start | "b"'),
        Grammar('start: start "a" | "b"'),
        Grammar('start: x ("," x)*\nx: "a"'),
        Grammar("start: WORD\nWORD: /[a-z]+/"),
        Grammar('start: "a" "b"\n%ignore " "'),
        schema(a={"type": "string"}),
        schema(a={"type": "integer"}),
        schema(a={"type": "array", "items": {"type": "boolean"}}),
        JsonSchema("{}"),
        JsonSchema('{"type": "object", "properties": {}, "additionalProperties": true}'),
        JsonSchema(
            '{"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}'
        ),
    ],
    ids=str,
)
def test_a_constraint_whose_replies_may_never_end_is_refused_with_what_to_write(constraint):
    with pytest.raises(ConfError, match="any length"):
        longest_reply(constraint)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Regex("(a"), "parenthesis"),
        (Grammar("start: foo"), "unknown name 'foo'"),
        (Grammar("start: ("), "line 1"),
        (Grammar(" "), "no start rule"),
        (JsonSchema('{"type"'), "JSON"),
        (JsonSchema('{"type": "foo"}'), "foo"),
        (JsonSchema("false"), "cannot accept any value"),
        (JsonSchema('{"$ref": "#/$defs/x"}'), r"\$defs"),
    ],
    ids=str,
)
def test_what_does_not_compile_is_refused_with_the_reason(constraint, message):
    with pytest.raises(ConfError, match=f"does not compile: .*{message}"):
        longest_reply(constraint)


def test_a_bounded_string_goes_to_the_engine_as_a_pattern_wherever_it_stands():
    word = {"type": "string", "minLength": 1, "maxLength": 9}
    nested = {"anyOf": [word, {"type": "array", "items": word, "maxItems": 2}], "$defs": {"w": word}}
    seen = json.loads(schema_text(JsonSchema(json.dumps(nested))))
    pattern = {"type": "string", "pattern": "^.{1,9}$"}
    assert seen == {
        "anyOf": [pattern, {"type": "array", "items": pattern, "maxItems": 2}],
        "$defs": {"w": pattern},
    }


def test_what_only_looks_like_a_bounded_string_stays_as_it_is():
    for tree in (
        {"enum": [{"type": "string", "maxLength": 3}]},
        {"type": "object", "properties": {"type": {"const": "string"}, "maxLength": {"type": "boolean"}}},
        {"type": "string", "format": "date", "maxLength": 10},
    ):
        assert json.loads(schema_text(JsonSchema(json.dumps(tree)))) == tree


def test_a_grammar_without_a_way_out_is_refused():
    with pytest.raises(ConfError, match="can ever end"):
        longest_reply(Grammar('start: "a" start'))


def test_a_constraint_that_allows_only_nothing_is_refused():
    with pytest.raises(ConfError, match="empty"):
        longest_reply(Regex(""))


def test_a_choice_needs_distinct_options_with_text():
    for options in ((), ("a", ""), ("a", "a")):
        with pytest.raises(ValueError, match="choice"):
            Choice(options)


@pytest.fixture(scope="module")
def compiled():
    """A JSON schema -> the grammar that an engine holds a decoder to, over a small vocabulary."""
    import xgrammar  # brings torch

    compiler = xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo([chr(i) for i in range(32, 127)], stop_token_ids=[0])
    )

    def compile_schema(constraint):
        found = compiler.compile_json_schema(
            schema_text(constraint), any_whitespace=False, separators=SEPARATORS
        )
        return lambda: xgrammar.GrammarMatcher(found)

    return compile_schema


@pytest.mark.parametrize("most", [128, 129, 300, 1_000])
def test_a_long_bounded_string_compiles_for_a_vocabulary_and_ends_at_its_bound(compiled, most):
    """xgrammar fails on a repetition of more than 128, and only where it knows the vocabulary."""
    matcher = compiled(schema(a={"type": "string", "maxLength": most}))
    lengths = (0, most, most + 1)
    assert [matcher().accept_string('{"a":"' + "x" * n + '"}') for n in lengths] == [True, True, False]


@pytest.mark.parametrize("name", ["functions", "weknow-domain", "weknow-confidence"])
def test_a_schema_that_ships_compiles_for_a_vocabulary(compiled, name):
    path = ROOT / f"conf/schemas/{name}.yaml"
    assert not compiled(JsonSchema(json.dumps(yaml.safe_load(path.read_text()))))().is_terminated()
