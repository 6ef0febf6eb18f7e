"""What differs in a field of a step, in lines for people: values before and after, of a text the lines that
changed.

Reads recipes as manifests have them; imports no step.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from raypipe.recipes.serialize import leaves
from raypipe.runs.manifest import Manifest
from raypipe.runs.stage_records import Difference

INLINE = 60  # characters of a value that stands in a sentence; a longer one is compared line by line
MOST_LINES = 40  # of one difference
NOTHING = "not there"


def with_lines(found: Mapping[str, Difference], before: Manifest, after: Manifest) -> dict[str, Difference]:
    """The differences of two runs by stage, with the lines that say what differs."""
    return {name: replace(d, lines=_lines(d, before, after)) for name, d in found.items()}


def recipe_lines(
    before: Mapping[str, Any], after: Mapping[str, Any], prompts: bool = True
) -> tuple[str, ...]:
    """All that differs between two recipes as `recipes.serialize.to_plain` has them, field by field; a
    prompt's changed lines only with `prompts`."""
    old, new = _stages(before), _stages(after)
    found: list[str] = []
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            found.append(f"{name}: {'added' if name in new else 'removed'}")
            continue
        changed = _value_lines((name,), old[name], new[name])
        hidden = f"{name}.prompt"
        found += changed if prompts else [x for x in changed if x.startswith(name) and hidden not in x]
    return tuple(found)


def recipe_text(recipe: Mapping[str, Any], prompts: bool = True) -> str:
    """A recipe as `recipes.serialize.to_plain` has it, for people: a line for each value."""
    return "\n".join(f"{name}: {value}" for name, value in recipe_values(recipe, prompts))


def recipe_values(recipe: Mapping[str, Any], prompts: bool = True) -> Iterator[tuple[str, str]]:
    """Each value of a recipe with its name, step and field; those of prompts only with `prompts`."""
    for name, values in _stages(recipe).items():
        for path, value in values.items():
            if prompts or path[:1] != ("prompt",):
                yield ".".join((name, *path)), value


def _stages(recipe: Mapping[str, Any]) -> dict[str, dict[tuple[str, ...], str]]:
    """The leaves of each stage, its gate among them."""
    out = {}
    for stage in (*recipe["corpus"], *recipe["question"]):
        gate = {"when": stage["when"]} if stage["when"] else {}
        out[stage["name"]] = dict(leaves({**stage["step"], **gate}))
    return out


def _lines(d: Difference, before: Manifest, after: Manifest) -> tuple[str, ...]:
    old, new = (_values(run.recipe, d) for run in (before, after))
    found = _value_lines((d.stage, d.field), old, new)
    more = len(found) - MOST_LINES
    return tuple([*found[:MOST_LINES], f"... and {more} more lines"] if more > 0 else found)


def _value_lines(
    where: tuple[str, ...], old: Mapping[tuple[str, ...], str], new: Mapping[tuple[str, ...], str]
) -> list[str]:
    found: list[str] = []
    said: tuple[str, ...] | None = None  # path of a model whose name differs: that says it all
    for path in dict.fromkeys([*old, *new]):
        a, b = old.get(path, NOTHING), new.get(path, NOTHING)
        if a == b or (said is not None and path[: len(said)] == said):
            continue
        if path in _names(old) | _names(new):
            said = path
        found += _difference(".".join((*where, *path)), a, b)
    return found


def _names(values: Mapping[tuple[str, ...], str]) -> set[tuple[str, ...]]:
    """Paths that have a value of their own and values below: names of models and graphs."""
    return {p for p in values if any(q[: len(p)] == p and q != p for q in values)}


def _values(recipe: Mapping[str, Any], d: Difference) -> dict[tuple[str, ...], str]:
    """The leaves of a stage's field; none where the stage or the field is not there."""
    for stage in (*recipe["corpus"], *recipe["question"]):
        if stage["name"] == d.stage:
            tree = stage if d.field == "when" else stage["step"]
            return dict(leaves(tree[d.field])) if d.field in tree else {}
    return {}


def _difference(where: str, old: str, new: str) -> Iterator[str]:
    if all(len(x) <= INLINE and "\n" not in x for x in (old, new)):
        yield f"{where} was {old or NOTHING}, is {new or NOTHING}"
        return
    yield f"{where} changed:"
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    for line in itertools.islice(lines, 2, None):  # the first two name files
        if not line.startswith("@@"):
            yield f"{line[0]} {line[1:]}"
