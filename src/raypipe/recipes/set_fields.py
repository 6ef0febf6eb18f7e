"""Fields of a recipe's steps set from outside: `STEP[:INTO].FIELD=VALUE`, as `--set` gives them.

Works on a recipe's tree before steps are made of it, so what is set is checked as what the file says, and is
in the digest alike. Knows which names address a step; what a field may hold `core.config` checks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from raypipe.core import config
from raypipe.core.config import Where, did_you_mean
from raypipe.core.errors import ConfError
from raypipe.recipes.read_recipe import WrittenStep, copied_steps

_FORM = re.compile(r"\A([^.=\s]+)\.([^=\s]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FieldSetting:
    text: str  # as it was given
    step: str  # its name: VERB, VERB:INTO, or VERB#N of several that are alike
    path: tuple[str, ...]  # the field; then keys, of a field that is a mapping
    value: Any  # as a recipe file would have it


def read_setting(text: str) -> FieldSetting:
    """Reads `STEP[:INTO].FIELD=VALUE`; the value is YAML. Raises ConfError for another form.

    >>> read_setting("fuse:final.weights.rerank=2.0").path
    ('weights', 'rerank')
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfError(
            f"--set {text!r}: expected STEP.FIELD=VALUE, or STEP:INTO.FIELD=VALUE where several steps have "
            "one verb, such as split.child_chars=500"
        )
    step, path, value = found.groups()
    if not value.strip():
        raise ConfError(f"--set {text!r}: expected a value behind the sign =; null is none")
    return FieldSetting(text, step, tuple(path.split(".")), config.read_value(value, f"--set {text!r}"))


def read_points(text: str) -> list[str]:
    """Reads `STEP.FIELD=V1,V2,...` into one setting for each value: the values are a list in YAML, without
    its brackets. Raises ConfError for another form, or a value that stands twice.

    >>> read_points("rerank.top=5,10")
    ['rerank.top=5', 'rerank.top=10']
    >>> read_points("decide.prefer=[kg, web],[web]")
    ['decide.prefer=[kg, web]', 'decide.prefer=[web]']
    """
    name, sign, values = text.partition("=")
    config.read_value(f"[{values}]", f"--set {text!r}")
    listed = yaml.compose(f"[{values}]", yaml.SafeLoader)
    assert isinstance(listed, yaml.SequenceNode)
    marks = [(n.start_mark.index - 1, n.end_mark.index - 1) for n in listed.value]
    found = [f"{name}{sign}{values[start:end]}" for start, end in marks] or [text]
    read = [read_setting(one) for one in found]
    for i, one in enumerate(read):
        if any(one.value == other.value and type(one.value) is type(other.value) for other in read[:i]):
            raise ConfError(f"--set {text!r}: expected each value once, found {one.value!r} twice")
    return found


def with_fields(tree: Mapping[str, Any], settings: Sequence[str], where: Where) -> dict[str, Any]:
    """A whole recipe's tree with these fields set. Raises ConfError for a name that fits no step or several,
    a field that the step has not, and a field that is set twice."""
    steps, out = copied_steps(tree, where)
    done: dict[tuple[str, ...], str] = {}
    for one in map(read_setting, settings):
        step = _addressed(one, steps, where)
        key = (step.name, *one.path)
        if key in done:
            raise ConfError(f"--set {one.text!r}: {done[key]!r} sets the same field; expected one of them")
        done[key] = one.text
        _set(step, one)
    return out


def _addressed(one: FieldSetting, steps: Sequence[WrittenStep], where: Where) -> WrittenStep:
    addresses = {_address(s, steps): s for s in steps}
    if one.step in addresses:
        return addresses[one.step]
    fits = [a for a, s in addresses.items() if one.step in (s.verb, f"{s.verb}:{_into(s)}")]
    if len(fits) == 1:
        return addresses[fits[0]]
    if fits:
        raise ConfError(
            f"--set {one.text!r}: {one.step!r} fits {len(fits)} steps of {where.file}: {', '.join(fits)}. "
            f"Name one of them, as {fits[0]}.{'.'.join(one.path)}=..."
        )
    close = did_you_mean(one.step, addresses)
    raise ConfError(f"--set {one.text!r}: no step {one.step!r} in {where.file}; {close}")


def _into(step: WrittenStep) -> str:
    """The field `into` of a step, or its default."""
    default = next((f.default for f in dataclasses.fields(step.cls) if f.name == "into"), step.verb)
    return str(step.fields.get("into", default if isinstance(default, str) else step.verb))


def _address(step: WrittenStep, steps: Sequence[WrittenStep]) -> str:
    """The shortest name that fits this step alone."""
    alike = [s for s in steps if s.verb == step.verb]
    if len(alike) == 1:
        return step.verb
    if sum(_into(s) == _into(step) for s in alike) == 1:
        return f"{step.verb}:{_into(step)}"
    return step.name if "#" in step.name else f"{step.name}#1"


def _set(step: WrittenStep, one: FieldSetting) -> None:
    known = (*(f.name for f in dataclasses.fields(step.cls) if f.init), "when")
    if one.path[0] not in known:
        hint = did_you_mean(one.path[0], known)
        raise ConfError(f"--set {one.text!r}: {step.verb} has no field {one.path[0]!r}; {hint}")
    at = step.fields
    for depth, key in enumerate(one.path[:-1], 1):
        inner = at.get(key, {})
        if not isinstance(inner, dict):
            said = ".".join(one.path[:depth])
            raise ConfError(
                f"--set {one.text!r}: {said} of {step.verb} is {config.kind_of(inner)}, which has no "
                f"{one.path[depth]!r}; expected {said}=VALUE"
            )
        at[key] = dict(inner)
        at = at[key]
    at[one.path[-1]] = one.value
