"""Checks of constraints on replies: that they compile, and that the longest reply has a finite length.

xgrammar, which enforces constraints in the engine, parses them here first. A constraint that does not
compile, or allows replies of any length, raises ConfError. Unbounded replies are refused, because a test's
random model, and sometimes a real one, rarely leaves a loop by itself: half of the replies would be cut.
"""

from __future__ import annotations

import json
import math
import re
from functools import cached_property, lru_cache
from typing import Any

from raypipe.core.errors import ConfError
from raypipe.core.llm import Choice, Constraint, Grammar, JsonSchema, Regex

SEPARATORS = (",", ":")
"""Separators of JSON without white space, since unbounded white space is a loop too."""

TREE_VERSION = "v16"  # version of the serialized syntax tree that xgrammar 0.2.8 writes
BYTES, CLASS, EMPTY, RULE, SEQUENCE, CHOICES, REPEAT, PATTERN = 0, 1, 3, 4, 5, 6, 8, 12


@lru_cache(maxsize=256)
def longest_reply(constraint: Constraint) -> int:
    """Returns the most bytes (UTF-8) that a constraint allows in a reply. A reply has at most as many tokens.

    Raises ConfError for a constraint that does not compile, that no reply or only an empty one can fulfil, or
    that allows replies of any length."""
    if isinstance(constraint, Choice):
        return max(len(option.encode()) for option in constraint.options)
    tree = _Tree(_serialized(constraint))
    longest = tree.lengths[tree.root]
    if longest < 0:
        raise _error(constraint, "no reply can ever end, each way through it leads back into it")
    if math.isinf(longest):
        bound = _BOUND[type(constraint)]
        raise _error(constraint, f"it allows replies of any length ({tree.endless()}). {bound}")
    if longest == 0:
        raise _error(constraint, "the only reply it allows is empty")
    return int(longest)


def schema_text(constraint: JsonSchema) -> str:
    """Rewrites a schema for an engine: a plain string with maxLength becomes a pattern. With maxLength,
    xgrammar allows control characters, which are invalid JSON. Raises ConfError for text that is no JSON."""
    try:
        tree = json.loads(constraint.text)
    except ValueError as e:
        raise _error(constraint, f"it does not compile: not valid JSON: {e}") from e
    return json.dumps(_patterned(tree), separators=SEPARATORS)


def structured(constraint: Constraint) -> dict[str, Any]:
    """Converts a constraint to the arguments of vLLM's StructuredOutputsParams."""
    match constraint:
        case Choice(options):
            return {"choice": list(options)}
        case Regex(pattern):
            return {"regex": pattern}
        case JsonSchema():
            return {"json": schema_text(constraint)}
        case Grammar(text):
            return {"grammar": text}


def _patterned(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            out[key] = {name: _patterned(part) for name, part in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            out[key] = [_patterned(part) for part in value]
        elif key in ("items", "additionalProperties"):
            out[key] = _patterned(value)
        else:
            out[key] = value
    other = out.keys() & {"pattern", "format", "enum", "const"}
    if out.get("type") == "string" and isinstance(out.get("maxLength"), int) and not other:
        out["pattern"] = _any_text(out.pop("minLength", 0), out.pop("maxLength"))
    return out


MOST_REPEATS = 128
"""Largest count of one repetition in a pattern. From 129 on, xgrammar 0.2.8 parses the pattern but cannot
compile it for a vocabulary; an engine reports that as a reply that ended with an error."""


def _any_text(least: int, most: int) -> str:
    """Returns a pattern that matches any `least` to `most` characters.

    >>> _any_text(0, 80), _any_text(2, 300)
    ('^.{0,80}$', '^.{2}(.{0,128}){0,2}.{0,42}$')
    """
    if most <= MOST_REPEATS or least > MOST_REPEATS:
        return f"^.{{{least},{most}}}$"
    whole, rest = divmod(most - least, MOST_REPEATS)
    start = f".{{{least}}}" if least else ""
    return f"^{start}(.{{0,{MOST_REPEATS}}}){{0,{whole}}}.{{0,{rest}}}$"


_NAME = {Regex: "regex", JsonSchema: "JSON schema", Grammar: "grammar"}
_BOUND = {
    Regex: "Write {0,n} in the place of * and {1,n} of +",
    JsonSchema: "Give each string maxLength, enum or a bounded pattern, each array maxItems, each number "
    "minimum and maximum; name all properties; no $ref that leads back into itself",
    Grammar: "Write x~0..n in the place of x* and x~1..n of x+, {0,n} in terminals; no %ignore, and no "
    "rule that leads back into itself",
}


def _error(constraint: Regex | JsonSchema | Grammar, problem: str) -> ConfError:
    text = constraint.pattern if isinstance(constraint, Regex) else constraint.text
    shown = text if len(text) <= 400 else text[:400] + " ..."
    return ConfError(f"{_NAME[type(constraint)]}: {problem}\n{shown}")


def _serialized(constraint: Regex | JsonSchema | Grammar) -> dict[str, Any]:
    from xgrammar import Grammar as Parser  # imports torch

    try:
        match constraint:
            case Regex(pattern):
                parsed = Parser.from_regex(pattern)
            case JsonSchema():
                text = schema_text(constraint)
                parsed = Parser.from_json_schema(text, any_whitespace=False, separators=SEPARATORS)
            case Grammar(text):
                parsed = Parser.from_lark(text)
    except (RuntimeError, ValueError) as e:
        reason = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(e)).strip()  # without clock and source line
        raise _error(constraint, f"it does not compile: {reason}") from e
    tree: dict[str, Any] = json.loads(parsed.serialize_json())
    return tree


class _Tree:
    """Syntax tree of a constraint: rules refer to expressions, and expressions refer to rules."""

    def __init__(self, tree: dict[str, Any]) -> None:
        if tree["__VERSION__"] != TREE_VERSION:
            found = tree["__VERSION__"]
            expected = f"expected xgrammar's syntax tree {TREE_VERSION}, found {found}"
            raise ConfError(f"constraints: {expected}. Install the xgrammar that requirements/ names")
        self.names: list[str] = [rule[0] for rule in tree["rules"]]
        self._bodies: list[int] = [rule[1] for rule in tree["rules"]]
        self._data: list[int] = tree["grammar_expr_data"]
        self._starts: list[int] = tree["grammar_expr_indptr"]
        self.root: int = tree["root_rule_id"]

    def _expression(self, i: int) -> tuple[int, list[int]]:
        start = self._starts[i]
        return self._data[start], self._data[start + 2 : start + 2 + self._data[start + 1]]

    def _length(self, i: int, known: list[float]) -> float:
        """Returns the bytes of the longest text of the expression `i`. `known` has the lengths of all rules
        found so far. Returns -inf if no finite text is known yet, and inf if there is no limit."""
        kind, parts = self._expression(i)
        if kind == BYTES:
            return len(parts)
        if kind == CLASS:  # negated, then pairs of first and last character
            longest = chr(0x10FFFF) if parts[0] else chr(max(parts[2::2]))
            return len(longest.encode("utf-8", "surrogatepass"))
        if kind == EMPTY:
            return 0
        if kind == RULE:
            return known[parts[0]]
        if kind == SEQUENCE:
            lengths = [self._length(part, known) for part in parts]
            return -math.inf if -math.inf in lengths else sum(lengths)
        if kind == CHOICES:
            return max(self._length(part, known) for part in parts)
        if kind == REPEAT:  # rule, least, most (-1: any number)
            each, (least, most) = known[parts[0]], parts[1:3]
            if each <= 0:
                return -math.inf if least and each < 0 else 0
            return math.inf if most < 0 else each * most
        if kind == PATTERN:  # pattern of a JSON string, without escapes: a flag, then its bytes
            inner = _Tree(_serialized(Regex(bytes(parts[1:]).decode().removeprefix("^").removesuffix("$"))))
            return inner.lengths[inner.root]
        return math.inf  # an endless repetition of a class, or a kind that a later version adds

    @cached_property
    def lengths(self) -> list[float]:
        """Bytes of the longest text of each rule; inf means no limit, -inf means no finite text. Each round
        of the loop looks one level of rules deeper. A length that still grows after as many rounds as there
        are rules has no limit, because the rule contains itself."""
        known = [-math.inf] * len(self._bodies)
        rounds = len(self._bodies) + 1
        for i in range(2 * rounds):
            before, known = known, [self._length(body, known) for body in self._bodies]
            if before == known:
                return known
            if i == rounds - 1:
                settled = known
        return [new if old == new else math.inf for old, new in zip(settled, known, strict=True)]

    def endless(self) -> str:
        """Names at most four rules without a longest text that the constraint reaches, innermost first."""
        found: list[int] = []
        pending = [self.root]
        while pending:
            rule = pending.pop()
            if rule not in found and self.lengths[rule] == math.inf:
                found.append(rule)
                pending += self._named(self._bodies[rule])
        return "rules " + ", ".join(self.names[rule] for rule in reversed(found[-4:]))

    def _named(self, i: int) -> list[int]:
        kind, parts = self._expression(i)
        if kind in (RULE, REPEAT):
            return parts[:1]
        if kind in (SEQUENCE, CHOICES):
            return [rule for part in parts for rule in self._named(part)]
        return []
