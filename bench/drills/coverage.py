"""Counts how often intervals and verdicts over groups are wrong: invented runs whose truth is known.

    python bench/drills/coverage.py               # 200 runs a setting: about a minute
    python bench/drills/coverage.py --runs 2000

For each kind of data and 6, 20 and 60 groups: the share of 95 % intervals that hold the true mean (wanted: at
least 92 %), and of runs that are truly more than MARGIN worse the share that is called `same` or `not worse`
(wanted: at most 5 %). Over the kinds whose groups are far apart, which an interval could hold too well, the
shares of each number of groups have a mean of at most 97 %. Prints one JSON line a setting; exit code 1 where
one misses its aim by more than two standard errors of the simulation itself.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from raypipe.metrics.paired_tests import MARGIN, Interval, mean_intervals

Floats = npt.NDArray[np.float64]
SIZES = {6: 5, 20: 10, 60: 4}  # groups -> questions of a group, on average


@dataclass(frozen=True)
class Kind:
    """Data of one kind: a mean, and groups of questions drawn around it."""

    name: str
    truth: float
    ends: Interval
    draw: Callable[
        [np.random.Generator, int, int], Floats
    ]  # groups, questions of each -> (groups, questions)
    far: bool = False  # groups lie as far apart as values can


def _lost(share: float, noise: float) -> Callable[[np.random.Generator, int, int], Floats]:
    """All questions of a share of the groups lose; the others differ by noise."""
    return lambda r, n, each: np.clip(
        -(r.random((n, 1)) < share).astype(float) + noise * r.normal(size=(n, each)), -1, 1
    )


def _moved(r: np.random.Generator, n: int, each: int) -> Floats:
    """Half of the groups gain or lose as one."""
    return np.repeat((r.random((n, 1)) < 0.5) * r.choice([-1.0, 1.0], (n, 1)), each, axis=1)


def _levels(r: np.random.Generator, n: int, each: int) -> Floats:
    """F1 of questions whose paper has a level of its own."""
    return (r.random((n, each)) < r.beta(2, 2, (n, 1))) * r.beta(2, 1, (n, each))


KINDS = (
    Kind("5 % of the groups lose all", -0.05, (-1, 1), _lost(0.05, 0.0)),
    Kind("3 % of the groups lose all", -0.03, (-1, 1), _lost(0.03, 0.0)),
    Kind("5 % of the groups lose all, others differ a little", -0.05, (-1, 1), _lost(0.05, 0.02)),
    Kind("groups gain or lose as one", 0.0, (-1, 1), _moved, far=True),
    Kind("60 % of the groups are right", 0.6, (0, 1), lambda r, n, e: 1 + _lost(0.4, 0.0)(r, n, e), far=True),
    Kind("90 % of the groups are right", 0.9, (0, 1), lambda r, n, e: 1 + _lost(0.1, 0.0)(r, n, e)),
    Kind("levels of F1", 1 / 3, (0, 1), _levels, far=True),
)


@dataclass(frozen=True)
class Outcome:
    runs: int
    covered: float  # share of the 95 % intervals that hold the truth
    same: float  # share called `same` by the 90 % interval although truly further apart than MARGIN
    not_worse: float  # share called `not worse` although truly worse by more than MARGIN

    def holds(self) -> bool:
        """Returns whether all aims are met, up to two standard errors of the simulation."""
        allowed = 0.05 + 2 * math.sqrt(0.05 * 0.95 / self.runs)
        least = 0.92 - 2 * math.sqrt(0.92 * 0.08 / self.runs)
        return self.covered >= least and max(self.same, self.not_worse) <= allowed


def simulate(kind: Kind, groups: int, runs: int, seed: int) -> Outcome:
    """Draws runs of a kind, groups of uneven sizes, and counts what is wrong."""
    rng, most = np.random.default_rng(seed), 2 * SIZES[groups] - 1
    covered = same = not_worse = 0
    for _ in range(runs):
        sizes = rng.integers(1, most + 1, groups)
        drawn = kind.draw(rng, groups, most)
        values = np.concatenate([row[:n] for row, n in zip(drawn, sizes, strict=True)])
        names = [str(g) for g in np.repeat(np.arange(groups), sizes)]
        wide, narrow = mean_intervals(values, kind.ends, names, (0.95, 0.90))
        assert wide is not None and narrow is not None
        covered += wide[0] <= kind.truth <= wide[1]
        same += abs(kind.truth) > MARGIN and narrow[0] > -MARGIN and narrow[1] < MARGIN
        not_worse += kind.truth < -MARGIN < narrow[0]
    return Outcome(runs, covered / runs, same / runs, not_worse / runs)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200, help="runs a setting (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    failed, far = False, defaultdict[int, list[float]](list)
    for kind in KINDS:
        for groups in SIZES:
            outcome = simulate(kind, groups, args.runs, args.seed)
            line = {"kind": kind.name, "groups": groups, **asdict(outcome), "holds": outcome.holds()}
            print(json.dumps(line), flush=True)
            failed |= not outcome.holds()
            if kind.far:
                far[groups].append(outcome.covered)
    for groups, shares in far.items():
        mean, most = sum(shares) / len(shares), 0.97 + 2 * math.sqrt(0.97 * 0.03 / args.runs / len(shares))
        print(json.dumps({"groups": groups, "mean of far groups": mean, "holds": mean <= most}))
        failed |= mean > most
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
