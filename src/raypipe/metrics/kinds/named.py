"""Opens a kind by its name, or by the path of one from outside: `mypkg.kinds:Choices`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raypipe.core import plugins
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.core.plugins import is_path
from raypipe.metrics.crag import Rule
from raypipe.metrics.kinds.contract import DataKind, missing_part, rule_of, with_rule
from raypipe.metrics.kinds.crag import Crag
from raypipe.metrics.kinds.qa import Qa
from raypipe.metrics.kinds.qasper import Qasper
from raypipe.metrics.kinds.ranking import Ranking

KINDS: Mapping[str, Callable[[], DataKind]] = {
    "crag": Crag,
    "qa": Qa,
    "qasper": Qasper,
    "ranking": Ranking,
}


def open_kind(name: str, rule: Rule | None = None, judged: bool = False) -> DataKind:
    """The kind of this name. `rule`: of scoring, for a kind that has rules; None: its own. `judged`:
    whether a judge is to decide what the rule leaves open.

    Raises ConfError for no kind, and for a rule or a judge that the kind cannot use.
    """
    if is_path(name):
        found, _ = plugins.load(name, "a kind of data")
        kind: DataKind = found() if isinstance(found, type) else found
        if (lacking := missing_part(kind)) is not None:
            raise ConfError(f"{name}: expected a kind of data with {lacking}")
    elif name in KINDS:
        kind = KINDS[name]()
    else:
        raise ConfError(f"kind {name!r}: {did_you_mean(name, KINDS)}, or MODULE:NAME of one of your own")
    if rule is not None:
        ruled = with_rule(kind, rule)
        if ruled is None:
            raise ConfError(f"--rule {rule}: kind {name} scores by no rule. {_RULES}")
        kind = ruled
    if judged and rule_of(kind) is None:
        raise ConfError(f"--judge: kind {name} leaves no question open for a judge. {_RULES}")
    return kind


_RULES = "--kind crag scores answers by CRAG's rules, and a judge decides what they leave open"


def kind_id(name: str) -> str:
    """Names a kind in a report: of one from outside its path and its source."""
    if not is_path(name):
        return name
    return f"{name}@{plugins.load(name, 'a kind of data')[1].source[:8]}"
