"""The cost model: counts of a fit's operations, and the seconds that each operation takes.

The time of a fit is modelled as linear in its operation counts: t = sum over j of c_j v_j. The
counts c_j are known in advance for each family of estimators; v_j is the time of one operation in
seconds, on a given machine. Tiny fits give pairs of counts and times (`Equation`), from which
:func:`fit_cost_values` computes the v_j. Costs are kept in a file of the user's cache folder, under
a key of all that they depend on.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from daskml_dist.data.computing import configured_flag

#: Numbers of operations by the name of the operation, such as "step", "row" or "entry".
Counts = Mapping[str, float]
#: Counts of a fit or of a pass, and the seconds that it took: a row of the least squares problem.
Equation = tuple[Counts, float]


@dataclass(frozen=True)
class PackedMessage:
    """Compressed message of a lane.

    Parameters
    ----------
    n_bytes : float
    way : {"gather", "ranges", "sum"}
        How lanes without a server sum their messages: each lane gets all of them ("gather"); each
        lane sums one range ("ranges"); or factors of low rank are all-reduced ("sum").

    Examples
    --------
    >>> from daskml_dist.planning import PackedMessage
    >>> PackedMessage(1000.0).count_sent(n_lanes=8, n_trainers=4)
    6000.0
    """

    n_bytes: float
    way: str = "gather"

    def count_sent(self, n_lanes: int, n_trainers: int) -> float:
        """Return the bytes that a trainer sends in a step, on average."""
        lanes_per_trainer, n_others = n_lanes / n_trainers, n_trainers - 1
        if self.way == "gather":
            return lanes_per_trainer * n_others * self.n_bytes
        # First to the owners of ranges, then from them to all others.
        if self.way == "ranges":
            return (lanes_per_trainer + 1) * n_others / n_trainers * self.n_bytes
        return 2 * n_others / n_trainers * self.n_bytes


@dataclass(frozen=True)
class Work:
    """Counts of the operations of a fit, by name.

    Parameters
    ----------
    setup : mapping of str to float
        Counts outside the passes: ``fit`` is 1, ``read`` the number of entries that are inspected.
    one_pass : mapping of str to float
        Counts of a later pass, per process that computes in parallel: ``pass`` is 1.
    passes : float
    meetings : float, default=1.0
        Number of times in a pass that processes synchronize.
    message : float, default=0.0
        Bytes that each process sends, and receives, in one synchronization.
    packed : PackedMessage or None
        Compressed message that each lane sends instead, if there is one.

    Examples
    --------
    >>> from daskml_dist.planning import Costs, Work
    >>> costs = Costs({'fit': 0.01, 'row': 1e-8})
    >>> round(costs.seconds(Work({'fit': 1.0}, {'row': 1e6}, passes=5.0), 'sync'), 4)
    0.06
    """

    setup: Counts
    one_pass: Counts
    passes: float
    meetings: float = 1.0
    message: float = 0.0
    packed: PackedMessage | None = None


@dataclass(frozen=True)
class Costs:
    """Seconds of the parts of fits at one place, none of them negative.

    Parameters
    ----------
    values : mapping of str to float
        Seconds of each operation that :class:`Work` counts; missing operations take no time.
    gather : float, default=0.0
        Seconds per byte of rows moved from the workers to this process.
    passes : float, default=0.0
        Passes until fits of synthetic rows converged; 0: unknown.
    steps : mapping of str to float
        Seconds of a step under other policies, by policy name.

    Examples
    --------
    >>> from daskml_dist.planning import Costs, Work
    >>> costs = Costs({'fit': 0.01, 'row': 1e-8})
    >>> round(costs.seconds(Work({'fit': 1.0}, {'row': 1e6}, passes=5.0), 'sync'), 4)
    0.06
    """

    values: Mapping[str, float]
    gather: float = 0.0
    passes: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)

    def setup_seconds(self, work: Work) -> float:
        """Return the seconds of a fit outside its passes."""
        return _sum_seconds(work.setup, self.values)

    def pass_seconds(self, work: Work, policy: str = "") -> float:
        """Return the seconds of a later pass, under a policy whose steps were measured, if any."""
        values = self.values
        if policy in self.steps:
            values = {**values, "step": self.steps[policy]}
        return _sum_seconds(work.one_pass, values)

    def seconds(self, work: Work, policy: str = "") -> float:
        """Return the seconds of a whole fit."""
        return self.setup_seconds(work) + work.passes * self.pass_seconds(work, policy)

    def with_policy(self, name: str, equation: Equation) -> Costs:
        """Return these costs with the step cost of another policy, from a pass under it."""
        counts, seconds = equation
        # Policies differ only in the synchronization of a step: the time of the pass beyond the
        # known costs of its rows and entries is that of its steps.
        other_counts = {name: count for name, count in counts.items() if name != "step"}
        step = max(seconds - _sum_seconds(other_counts, self.values), 0.0) / counts["step"]
        return Costs(self.values, self.gather, self.passes, {**self.steps, name: step})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a file."""
        return {
            "values": dict(self.values), "gather": self.gather, "passes": self.passes,
            "steps": dict(self.steps),
        }  # fmt: skip

    @classmethod
    def of_dict(cls, kept: Mapping[str, Any]) -> Costs:
        """Return the costs from values that :meth:`as_dict` made.

        Raises
        ------
        ValueError, TypeError, KeyError, AttributeError
            The values are not valid costs.
        """
        values, steps = (
            {str(name): float(value) for name, value in kept[part].items()}
            for part in ("values", "steps")
        )
        gather, passes = float(kept["gather"]), float(kept["passes"])
        numbers = (*values.values(), *steps.values(), gather, passes)
        if not all(np.isfinite(value) and value >= 0 for value in numbers):
            raise ValueError("costs are finite and not negative")
        return cls(values, gather, passes, steps)


def fit_cost_values(
    equations: Sequence[Equation], known_values: Mapping[str, float]
) -> dict[str, float]:
    """Return seconds per operation that explain measured times, by non-negative least squares.

    Minimises the sum over equations of ((sum over j of c_j v_j) / t - 1)**2, the squared relative
    errors, over v >= 0 (Lawson and Hanson 1974, chapter 23). With relative errors, a fit of a
    millisecond has the same weight as one of a second. Without the bound, noise would give
    operations negative seconds, and plans for larger data negative times. Operations in
    `known_values` keep their seconds.
    """
    # Imported here: a program that only imports an estimator does not need it.
    from scipy.optimize import nnls

    names = sorted({name for counts, _ in equations for name in counts} - set(known_values))
    # At least a nanosecond, to avoid a division by zero: a pass may be shorter than a clock tick.
    seconds = np.maximum([value for _, value in equations], 1e-9)
    known_seconds = np.array([_sum_seconds(counts, known_values) for counts, _ in equations])
    relative = np.array([[counts.get(name, 0.0) for name in names] for counts, _ in equations])
    relative /= seconds[:, None]
    # Scale columns to norm 1: there are a million times as many entries as fits, and `nnls`
    # compares all columns with one tolerance.
    norms = np.linalg.norm(relative, axis=0)
    norms[norms == 0] = 1.0
    solution, _ = nnls(relative / norms, 1 - known_seconds / seconds)
    return {
        **known_values,
        **{name: float(v) for name, v in zip(names, solution / norms, strict=True)},
    }


def _sum_seconds(counts: Counts, values: Mapping[str, float]) -> float:
    """Return the seconds of all counts; operations without known seconds take no time."""
    return float(sum(count * values.get(name, 0.0) for name, count in counts.items()))


logger = logging.getLogger(__name__)


def cache_file() -> Path | None:
    """Return the path of the cache file.

    None if ``daskml_dist.planning.cache`` in Dask's config is False, or without a home folder.
    """
    if not configured_flag("daskml_dist.planning.cache", True):
        return None
    if not (folder := os.environ.get("XDG_CACHE_HOME")):
        # Containers may run as a user that is in no list of users, without HOME.
        try:
            folder = str(Path.home() / ".cache")
        except RuntimeError:
            return None
    return Path(folder) / "daskml_dist" / "planning.json"


def load_costs(key: str) -> Costs | None:
    """Return the costs that were saved under a key.

    None if there are none, or if the file is damaged.
    """
    path = cache_file()
    if path is None:
        return None
    # Any error of a file that was edited by hand or by another version: measure again.
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        return Costs.of_dict(_read(path)[key])
    return None


def save_costs(key: str, costs: Costs) -> None:
    """Keep costs under a key; if the file cannot be written, the next plan measures again."""
    path = cache_file()
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**_read(path), key: costs.as_dict()}, indent=1)
        # Renamed into place, so that another process never reads a partial file. If two processes
        # save at the same time, the later one wins; the lost costs are measured again.
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        logger.info("Costs for planning are not kept: %s", error)


def _read(path: Path) -> Mapping[str, Any]:
    """Return the costs in a file by their keys; empty if it cannot be read."""
    with suppress(OSError):
        return _parse_cached(path, path.stat().st_mtime_ns)
    return {}


@lru_cache(maxsize=4)
def _parse_cached(path: Path, changed: int) -> Mapping[str, Any]:
    """Return the file's values; `changed`, its mtime in ns, is part of the cache key."""
    with suppress(OSError, ValueError):
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict):
            return values
    return {}
