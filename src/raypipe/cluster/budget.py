"""How many rows a run may leave undone before it counts as failed. Knows nothing of rows."""

from __future__ import annotations

from dataclasses import dataclass

FEW = 0.05
"""The share of its rows that a small run may leave undone: one in twenty. Our own choice."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How many rows of a kind a run may leave undone: the greater of the two, but of few rows no more than
    the share `FEW`. In no digest."""

    share: float = 0.005  # of the rows
    rows: int = 10

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.rows < 0:
            raise ValueError("faults: expected a share of 0 to 1 and rows of at least 0")

    def allowed(self, rows: int) -> int:
        """Of this number of rows.

        >>> [Budget().allowed(rows) for rows in (1, 6, 20, 100, 200, 2_706)]
        [0, 0, 1, 5, 10, 13]
        """
        return max(int(self.share * rows), min(self.rows, int(FEW * rows)))
