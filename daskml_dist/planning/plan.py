"""The plan of a fit: what it takes at each place, under each policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from dask.base import compute

from daskml_dist.data.lazy import is_dask
from daskml_dist.planning.text import bytes_text, range_text, seconds_text
from daskml_dist.training.run import INLINE

__all__ = ["Choice", "Plan"]

_COLUMNS = ("place", "policy", "passes", "a pass", "seconds", "traffic", "memory a worker")


@dataclass(frozen=True)
class Choice:
    """A way to make a fit: a place and a policy, with what it takes.

    Parameters
    ----------
    estimator : estimator
    place : {"inline", "cluster"}
        In this process, or on the workers of the client.
    policy : str
        Name of the policy.
    passes : int
        Passes over the rows, at most where `tol` may end the fit sooner.
    pass_seconds : float
        Of one pass.
    seconds : tuple of (float, float), or None
        Range of the whole fit; None where nobody knows, since rows are read in each pass.
    traffic : float
        Bytes between processes: rows that are sent, gradients and parameters.
    memory : float
        Bytes of rows in one worker, or in this process.
    own : bool
        Whether the policy is the estimator's.
    client : distributed.Client or None
    """

    estimator: Any = field(repr=False)
    place: str
    policy: str
    passes: int
    pass_seconds: float
    seconds: tuple[float, float] | None
    traffic: float
    memory: float
    own: bool = True
    client: Any = field(default=None, repr=False)

    @property
    def expected(self) -> float:
        """The middle of the range, in seconds; infinite where nobody knows."""
        if self.seconds is None:
            return float("inf")
        return float((self.seconds[0] * self.seconds[1]) ** 0.5)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the estimator so; Dask rows are gathered first where they are trained inline.

        Parameters
        ----------
        X, y, sample_weight
            As of the estimator's own ``fit``.

        Returns
        -------
        estimator
        """
        if self.place == INLINE and any(map(is_dask, (X, y, sample_weight))):
            X, y, sample_weight = compute(X, y, sample_weight)
        client = INLINE if self.place == INLINE else self.client
        policy = {} if self.own else {"policy": self.policy}
        return self.estimator.fit(X, y, sample_weight, client=client, **policy)


@dataclass(frozen=True)
class Plan:
    """Ways to make a fit, and which of them is advised.

    Parameters
    ----------
    title : str
        The estimator and the shape of the rows.
    choices : tuple of Choice
    why : str
        Reason of the advice.
    notes : tuple of str
        What the figures leave out, and warnings of memory.
    """

    title: str
    choices: tuple[Choice, ...]
    why: str
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Choice:
        """The fastest place under the estimator's own policy.

        Other policies end in other coefficients, so time alone does not choose between them.
        """
        own = (choice for choice in self.choices if choice.own)
        # Rows that fit nowhere are read again in each pass, which workers do side by side.
        return min(own, key=lambda choice: (choice.expected, choice.place == INLINE))

    @property
    def advice(self) -> str:
        """One line: the place, and why."""
        return f"Advice: {self.best.place}. {self.why}"

    def __str__(self) -> str:
        rows = [_COLUMNS, *map(_cells, self.choices)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([self.title, *table, self.advice, *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(choice)) + "</tr>"
            for choice in self.choices
        )
        notes = "".join(f"<br>{escape(note)}" for note in self.notes)
        return (
            f'<div class="daskml-plan"><p>{escape(self.title)}</p><table><thead><tr>{head}</tr>'
            f"</thead><tbody>{rows}</tbody></table><p><b>{escape(self.advice)}</b>{notes}</p></div>"
        )


def _cells(choice: Choice) -> Sequence[str]:
    sure = choice.estimator.tol is None
    return (
        choice.place,
        choice.policy,
        f"{choice.passes}" if sure else f"{choice.passes} at most",
        seconds_text(choice.pass_seconds),
        "unknown" if choice.seconds is None else range_text(choice.seconds),
        bytes_text(choice.traffic),
        bytes_text(choice.memory),
    )
