"""Progressive loss: what was predicted before each step, over all rows so far."""

from __future__ import annotations

__all__ = ["ProgressiveLoss"]


class ProgressiveLoss:
    """Sums of a stream's losses, each taken before the step along its own row.

    Every row is a test before it is learned, so the mean is an honest estimate of the loss of rows
    to come (Blum, Kalai and Langford 1999); it is Vowpal Wabbit's "average loss".

    Attributes
    ----------
    loss, weight : float
        Sums.
    n_rows, n_calls : int
    last : float
        Mean loss of the last call's rows.
    """

    def __init__(self) -> None:
        self.loss = self.weight = 0.0
        self.n_rows = self.n_calls = 0
        self.last = float("nan")

    def add(self, loss: float, weight: float, n_rows: int) -> None:
        """Count a call."""
        self.loss += loss
        self.weight += weight
        self.n_rows += n_rows
        self.n_calls += 1
        self.last = loss / weight if weight else float("nan")

    @property
    def mean(self) -> float:
        """Mean over all rows, by their weights; NaN before the first."""
        return self.loss / self.weight if self.weight else float("nan")

    def facts(self) -> dict[str, float | int]:
        """Sums, as JSON can hold them."""
        return {
            "loss": self.loss, "weight": self.weight, "n_rows": self.n_rows,
            "n_calls": self.n_calls,
        }  # fmt: skip

    def restore(self, facts: dict[str, float | int]) -> None:
        """Go on from sums."""
        self.loss, self.weight = float(facts["loss"]), float(facts["weight"])
        self.n_rows, self.n_calls = int(facts["n_rows"]), int(facts["n_calls"])
