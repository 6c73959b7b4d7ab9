"""The plan of a fit: its expected time, traffic and memory at each place, under each policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

from dask.base import compute

from daskml_dist.data.lazy import is_dask
from daskml_dist.errors import InvalidParameterError
from daskml_dist.training.job import INLINE

#: Columns of the table of a plan, in the order of `_make_cells`.
_COLUMNS = ("place", "policy", "passes", "a pass", "seconds", "traffic", "memory a worker")


@dataclass(frozen=True)
class Choice:
    """A way to run a fit: a place and a policy, with expected time, traffic and memory.

    Parameters
    ----------
    estimator : estimator
    place : str
        "inline": in this process; "cluster": on the workers of the client; else a hypothetical one.
    policy : str
        Name of the policy; for solvers without one, the unit of synchronisation: "rounds", ...
    passes : tuple of (int, int)
        Fewest and most passes over the rows that are likely.
    pass_seconds : float
        Seconds of one pass.
    seconds : tuple of (float, float), or None
        Range for the whole fit; None if it is unknown, since rows are read again in each pass.
    traffic : float
        Bytes sent between processes: rows, gradients and parameters.
    memory : float
        Bytes of rows in one worker, or in this process.
    own : bool
        Whether the policy is the estimator's own.
    client : distributed.Client or None

    Examples
    --------
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> plan = SGDClassifier().plan(X, y)  # doctest: +SKIP
    >>> plan.best.fit(X, y)  # doctest: +SKIP
    """

    estimator: Any = field(repr=False)
    place: str
    policy: str
    passes: tuple[int, int]
    pass_seconds: float
    seconds: tuple[float, float] | None
    traffic: float
    memory: float
    own: bool = True
    client: Any = field(default=None, repr=False)

    @property
    def expected(self) -> float:
        """Return the geometric mean of the range of seconds; infinite if it is unknown."""
        if self.seconds is None:
            return float("inf")
        # Geometric, since the range is given by factors: twice and half as long are equally likely.
        return float((self.seconds[0] * self.seconds[1]) ** 0.5)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit the estimator at this place; Dask rows are gathered first for a fit in this process.

        Parameters
        ----------
        X, y, sample_weight
            As in the estimator's own ``fit``.

        Returns
        -------
        estimator

        Raises
        ------
        InvalidParameterError
            The place is a hypothetical cluster.
        """
        if self.place not in (INLINE, "cluster"):
            raise InvalidParameterError(
                f"There are no {self.place}: this choice is hypothetical. Start a cluster, and "
                "use plan.best of a plan made with its client."
            )
        if self.place == INLINE and any(map(is_dask, (X, y, sample_weight))):
            X, y, sample_weight = compute(X, y, sample_weight)
        client = INLINE if self.place == INLINE else self.client
        # Only if they are set: estimators without a policy, or weights, have no such parameter.
        policy = {} if self.own else {"policy": self.policy}
        weight = {} if sample_weight is None else {"sample_weight": sample_weight}
        return self.estimator.fit(X, y, client=client, **weight, **policy)


@dataclass(frozen=True)
class Plan:
    """Ways to run a fit, with a recommended choice.

    Parameters
    ----------
    title : str
        The estimator and the shape of the rows.
    choices : tuple of Choice
    why : str
        Reason for the recommendation.
    notes : tuple of str
        Costs that the figures do not include, and warnings about memory.

    Examples
    --------
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> plan = SGDClassifier().plan(X, y)  # doctest: +SKIP
    >>> plan.best.fit(X, y)  # doctest: +SKIP
    """

    title: str
    choices: tuple[Choice, ...]
    why: str
    notes: tuple[str, ...] = ()
    _suppose: Callable[..., Choice] | None = field(default=None, repr=False)

    def what_if(
        self,
        workers: int,
        *,
        bandwidth: Any = "10Gbit",
        latency: float = 50e-6,
        stragglers: float = 0.1,
        policy: str | None = None,
    ) -> Plan:
        """Return this plan with the predicted time of the fit on a hypothetical cluster.

        Computing takes the same time as in this process; waits between workers are simulated with
        the gates of the policy, and messages by their sizes (the page on simulation describes what
        the simulation leaves out).

        Parameters
        ----------
        workers : int
            Number of machines like this one, with one lane each.
        bandwidth : str or float, default="10Gbit"
            Bandwidth of each machine's network card, each way: "10Gbit", "1.25GB", or bytes per
            second.
        latency : float, default=50e-6
            Latency of a message, one way, in seconds.
        stragglers : float, default=0.1
            Sigma of a lognormal factor on each step's time.
        policy : str, optional
            Policy to simulate; default: the estimator's own.

        Returns
        -------
        Plan

        Raises
        ------
        InvalidParameterError
            A value is invalid, or the estimator cannot be planned under this policy.

        Examples
        --------
        >>> plan.what_if(50, bandwidth="10Gbit")    # doctest: +SKIP
        """
        assert self._suppose is not None
        choice = self._suppose(
            workers=workers, bandwidth=bandwidth, latency=latency,
            stragglers=stragglers, policy=policy,
        )  # fmt: skip
        speed = bandwidth if isinstance(bandwidth, str) else f"{bandwidth:,.0f} bytes a second"
        note = f"{choice.place}: simulated, not measured; {speed} a machine."
        return replace(self, choices=(*self.choices, choice), notes=(*self.notes, note))

    @property
    def best(self) -> Choice:
        """Return the fastest place under the estimator's own policy.

        Other policies lead to other coefficients, so they cannot be compared by time alone.
        """
        # Hypothetical clusters cannot be fitted on, so they are not recommended.
        own_choices = (c for c in self.choices if c.own and c.place in (INLINE, "cluster"))
        # A tie means two unknown times, for rows that fit in no memory. The cluster is then
        # preferred, since its workers read parts of the rows in parallel in each pass.
        return min(own_choices, key=lambda choice: (choice.expected, choice.place == INLINE))

    @property
    def advice(self) -> str:
        """Return the recommended place and the reason, in one line."""
        return f"Advice: {self.best.place}. {self.why}"

    def __str__(self) -> str:
        rows = [_COLUMNS, *map(_make_cells, self.choices)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([self.title, *table, self.advice, *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the plan as a table for notebooks."""
        head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in _make_cells(choice)) + "</tr>"
            for choice in self.choices
        )
        notes = "".join(f"<br>{escape(note)}" for note in self.notes)
        return (
            f'<div class="daskml-plan"><p>{escape(self.title)}</p><table><thead><tr>{head}</tr>'
            f"</thead><tbody>{rows}</tbody></table><p><b>{escape(self.advice)}</b>{notes}</p></div>"
        )


def _make_cells(choice: Choice) -> Sequence[str]:
    """Return the cells of a choice in the table of a plan."""
    min_passes, max_passes = choice.passes
    return (
        choice.place,
        choice.policy,
        f"{min_passes}" if min_passes == max_passes else f"{min_passes} to {max_passes}",
        format_seconds(choice.pass_seconds),
        "unknown" if choice.seconds is None else format_seconds_range(choice.seconds),
        format_bytes(choice.traffic),
        format_bytes(choice.memory),
    )


def format_seconds_range(seconds: tuple[float, float]) -> str:
    """Return a range of seconds as text."""
    return " to ".join(map(format_seconds, seconds))


def format_seconds(seconds: float) -> str:
    """Return seconds with two digits, in a suitable unit."""
    for unit, scale in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        # Minutes and hours only from two on: "90 s" is easier to read than "1.5 min".
        if seconds >= scale * (2 if scale > 1 else 1):
            return f"{_format_digits(seconds / scale)} {unit}"
    return f"{_format_digits(seconds * 1e6)} µs"


def format_bytes(size: float) -> str:
    """Return bytes with three digits, in a suitable decimal unit."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def _format_digits(value: float) -> str:
    """Return a number with two significant digits, and all digits before the point."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
