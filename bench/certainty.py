"""How often a comparison is wrong: invented pairs of runs, some equally good, some not.

For each setting: false positives among pairs that are equally good (wanted: not above 5 %), and how often the
95 % interval holds the true difference (wanted: at least 93 %). Prints one JSON line a setting; exit code 1
where one misses its aim by more than two standard errors of the simulation itself.

    python bench/certainty.py                # 2,000 pairs a setting: some five minutes
    python bench/certainty.py --pairs 200
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from raypipe.metrics.paired import conclude, paired

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """Pairs of runs of one kind."""

    questions: int
    changed: float  # share of the questions whose value differs
    grouped: int = 0  # questions a group, which move together; 0: each by itself
    whole: bool = True  # CRAG's -1, 0, 1; False: a share such as token F1


SETTINGS = (
    Setting(115, 0.03),
    Setting(115, 0.10),
    Setting(115, 0.40),
    Setting(2706, 0.03),
    Setting(2706, 0.40),
    Setting(150, 0.10, grouped=5),
    Setting(150, 0.30, grouped=5),
    Setting(115, 0.10, whole=False),
)


@dataclass(frozen=True)
class Outcome:
    """What the pairs of a setting came to."""

    pairs: int
    false_positives: float  # share of equally good pairs that were called better or worse
    covered: float  # share of the intervals that hold the true difference

    def holds(self) -> bool:
        """Whether both aims are met, up to two standard errors of the simulation."""
        return self.false_positives <= 0.05 + 2 * math.sqrt(
            0.05 * 0.95 / self.pairs
        ) and self.covered >= 0.93 - 2 * math.sqrt(0.93 * 0.07 / self.pairs)


def simulate(setting: Setting, pairs: int, seed: int) -> Outcome:
    """Half of the work is for pairs that are equally good, half for pairs of which one gains more."""
    rng = np.random.default_rng(seed)
    wrong = held = 0
    for _ in range(pairs):
        equal, groups = _differences(rng, setting, 0.5)
        wrong += conclude(paired(np.zeros(len(equal)), equal, 2, groups)) in ("better", "worse")
        gained, groups = _differences(rng, setting, 0.5 if setting.grouped else 0.6)
        low, high = paired(np.zeros(len(gained)), gained, 2, groups).interval or (math.nan, math.nan)
        held += low <= _truth(setting) <= high
    return Outcome(pairs, wrong / pairs, held / pairs)


def _truth(setting: Setting) -> float:
    """The mean difference of the pairs of which one gains: sizes are 1 or 2, or evenly in 0..1."""
    return 0.0 if setting.grouped else setting.changed * 0.2 * (1.5 if setting.whole else 0.5)


def _differences(rng: np.random.Generator, s: Setting, up: float) -> tuple[Floats, list[str] | None]:
    n = s.questions
    groups = [str(i // s.grouped) for i in range(n)] if s.grouped else None
    moved = rng.random(n) < s.changed
    gains = np.full(n, up)
    if s.grouped:  # each group has its own share of gains, evenly drawn: half of them over all
        gains = np.repeat(rng.random(n // s.grouped), s.grouped)
    size = rng.integers(1, 3, n).astype(float) if s.whole else rng.random(n)
    return moved * np.where(rng.random(n) < gains, 1.0, -1.0) * size, groups


def _each(pairs: int, seed: int) -> Iterator[tuple[Setting, Outcome]]:
    for setting in SETTINGS:
        yield setting, simulate(setting, pairs, seed)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=2_000, help="pairs a setting (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    failed = False
    for setting, outcome in _each(args.pairs, args.seed):
        print(json.dumps({**asdict(setting), **asdict(outcome), "holds": outcome.holds()}), flush=True)
        failed |= not outcome.holds()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
