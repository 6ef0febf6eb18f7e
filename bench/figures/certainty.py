"""How often a comparison is wrong: invented pairs of runs, some equally good, some not; and invented judges.

For each setting: false positives among pairs that are equally good (wanted: not above 5 %), and how often the
95 % interval holds the true difference (wanted: at least 93 %). Then, for judges that err as is known, how
often the interval of the corrected score holds the true score (wanted: at least 93 %). Prints one JSON line a
setting; exit code 1 where one misses its aim by more than two standard errors of the simulation itself.

    python bench/figures/certainty.py                # 2,000 pairs a setting: some ten minutes
    python bench/figures/certainty.py --pairs 200
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

from raypipe.evaluation.judge_check import VerdictSample, corrected_score
from raypipe.metrics.paired_tests import conclude, group_sums, mean_interval, paired, sign_flip

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
class JudgeSetting:
    """Runs whose answers a judge decides, of which people label some."""

    questions: int
    labelled: int  # drawn at random from the answers that the judge decided
    too_kind: float  # share of the wrong answers that the judge calls right
    too_strict: float  # share of the right ones that it calls wrong


JUDGES = tuple(
    JudgeSetting(questions, labelled, kind, strict)
    for questions in (200, 1335)
    for labelled in (40, 80)
    for kind, strict in ((0.02, 0.02), (0.15, 0.05), (0.05, 0.25))
)
SHARES = (0.1, 0.3, 0.05, 0.35, 0.2)  # by rule right, missing, wrong; for the judge: truly right, wrong


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
        if sign_flip(equal if groups is None else group_sums(equal, groups)[0])[0] < 0.05:  # else neither
            wrong += conclude(paired(np.zeros(len(equal)), equal, 2, groups)) in ("better", "worse")
        gained, groups = _differences(rng, setting, 0.5 if setting.grouped else 0.6)
        low, high = mean_interval(gained, (-2, 2), groups) or (math.nan, math.nan)
        held += low <= _truth(setting) <= high
    return Outcome(pairs, wrong / pairs, held / pairs)


def simulate_judge(setting: JudgeSetting, runs: int, seed: int) -> Outcome:
    """Runs with a judge of this error, each with its score corrected by labels."""
    rng, held = np.random.default_rng(seed), 0
    truth = SHARES[0] - SHARES[2] + SHARES[3] - SHARES[4]
    for _ in range(runs):
        right, missing, wrong, good, bad = (int(n) for n in rng.multinomial(setting.questions, SHARES))
        strict, kind = rng.binomial(good, setting.too_strict), rng.binomial(bad, setting.too_kind)
        kinds = [
            good - strict,
            kind,
            bad - kind,
            strict,
        ]  # called right: truly, not; called wrong: truly, not
        drawn = rng.multivariate_hypergeometric(kinds, min(setting.labelled, sum(kinds)))
        called_right = VerdictSample(kinds[0] + kinds[1], int(drawn[0] + drawn[1]), int(drawn[1]))
        called_wrong = VerdictSample(kinds[2] + kinds[3], int(drawn[2] + drawn[3]), int(drawn[3]))
        low, high = corrected_score(right, missing, wrong, called_right, called_wrong).interval
        held += low <= truth <= high
    return Outcome(runs, 0.0, held / runs)


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


def _each(pairs: int, seed: int) -> Iterator[tuple[Setting | JudgeSetting, Outcome]]:
    for setting in SETTINGS:
        yield setting, simulate(setting, pairs, seed)
    for judge in JUDGES:
        yield judge, simulate_judge(judge, pairs, seed)


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
