"""Values that a kind of data computes for its questions, checked against its measures.

The code of a kind may be the user's own. Its exceptions then name the kind, the question and the line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raypipe.core.config import did_you_mean
from raypipe.core.errors import DataError
from raypipe.core.plugins import own_code

if TYPE_CHECKING:
    from raypipe.metrics.kinds import DataKind
    from raypipe.metrics.verdict_rules import Prediction


def path_of(kind: DataKind) -> str:
    """Returns MODULE:NAME of the class of a kind from outside, and "" for a kind of raypipe's own."""
    of = type(kind)
    return "" if of.__module__ == "raypipe.metrics.kinds" else f"{of.__module__}:{of.__qualname__}"


def checked_values(kind: DataKind, name: str, rows: Sequence[Prediction]) -> dict[str, dict[str, float]]:
    """Maps question ids to the values of the kind's measures. `name` is the kind's name in reports. Raises
    DataError if the kind's code raises, for values of no measure of the kind, and for values that are no
    numbers or outside the range of their measure."""
    own = name.partition("@")[0] if path_of(kind) else ""
    found = {}
    for row in rows:
        with own_code("kind", own, f"question {row.question}", "values"):
            values = kind.values(row)
        found[row.question] = _checked(kind, f"kind {name}, question {row.question}", values)
    return found


def _checked(kind: DataKind, where: str, values: Any) -> dict[str, float]:
    """Checks the values of one question. `where` begins the messages."""
    if not isinstance(values, Mapping):
        raise DataError(f"{where}: expected values by their measures, found {values!r:.80}. {_OTHERS}")
    measures = {m.name: m for m in kind.measures}
    for key, value in values.items():
        if (m := measures.get(key)) is None:
            hint = did_you_mean(str(key), measures)
            raise DataError(
                f"{where}: expected values of its measures, found {key!r}; {hint}. Add a Measure of that "
                f"name, or correct the name. {_OTHERS}"
            )
        try:
            fits = bool(m.low <= value <= m.high)
        except (TypeError, ValueError):  # a text, or an array
            raise DataError(f"{where}: expected {key} as a number, found {value!r:.80}. {_OTHERS}") from None
        if not fits:
            raise DataError(
                f"{where}: expected {key} from {m.low:g} to {m.high:g}, found {value:g}. Give the "
                f"Measure the low and high that its values have. {_OTHERS}"
            )
    return dict(values)


_OTHERS = "--kind NAME scores by another kind"
