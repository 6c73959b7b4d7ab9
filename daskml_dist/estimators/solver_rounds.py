"""Base class of the estimators that are fitted by round solvers.

A round solver requests a sum over all rows (a gradient, a Gram matrix, counts), computes with it on
the client or identically on every trainer, and requests the next one. `BaseRounds._fit` runs every
such fit; a subclass provides the model and the solver, and reads the solution.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.estimators.base import BaseOnRows, choose_client
from daskml_dist.parameters.checks import seed_of
from daskml_dist.solvers.base import Solution, Solver
from daskml_dist.solvers.own_rows import RowSolver
from daskml_dist.training.checkpoint import Checkpoint
from daskml_dist.training.dataset_info import DatasetInfo
from daskml_dist.training.in_parts import load_saved_seed
from daskml_dist.training.job import FitJob


class BaseRounds(BaseOnRows):
    """Base class of estimators fitted by a round solver.

    The solver requests sums over all rows, which are all-reduced, until it has a solution. Such an
    estimator may or may not learn a target.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.base import BaseRounds
    >>> from daskml_dist.models import Model
    >>> from daskml_dist.solvers import Solution, Solver, Statistic
    >>> class Total(Statistic):
    ...     def shape(self, model):
    ...         return (2,)
    ...     def add(self, model, rows, out, backend):
    ...         out += rows.X.sum(axis=0)
    ...         return 0.0
    >>> class Divide(Solver):
    ...     name, max_passes = "divide", 1
    ...     def solve(self, model, sums, start):
    ...         return Solution(sums(Total()) / sums.n_rows)
    >>> class NoTarget(Model):
    ...     def encode(self, y, classes, dtype):
    ...         return y
    >>> class Means(BaseRounds):
    ...     def _check_params(self):
    ...         pass
    ...     def _problem(self, rows):
    ...         return NoTarget(), Divide()
    ...     def _set_fitted(self, solution, model, rows):
    ...         self.means_ = solution.w
    >>> Means().fit(np.array([[1.0, 2.0], [3.0, 4.0]])).means_.tolist()
    [2.0, 3.0]
    """

    _run_used: ClassVar[tuple[str, ...]] = (
        "n_lanes",
        "deterministic",
        "memory_budget",
        "on_lost_data",
    )

    #: Share of the memory budget for rows that is reserved for data derived from them, such as bins
    #: and histograms.
    _made_share = 0.0

    @abstractmethod
    def _check_params(self) -> None:
        """Check every parameter, before any work is started."""

    @abstractmethod
    def _problem(self, rows: DatasetInfo) -> tuple[Any, Solver]:
        """Return the model for the rows of a fit, and the solver of its objective."""

    @abstractmethod
    def _set_fitted(self, solution: Solution, model: Any, rows: DatasetInfo) -> None:
        """Set the fitted attributes (for linear models `BaseLinear` does it)."""

    def _set_n_iter(self, solution: Solution) -> None:
        """Set `n_iter_` from the solution."""
        self.n_iter_: Any = solution.n_iter

    def _clear_fitted(self) -> None:
        """Delete attributes of the last fit that this one may not set again."""

    def _starting_parameters(self, model: Any, rows: DatasetInfo) -> NDArray[Any] | None:
        """Return the parameters to start from; None: zeros."""
        return None

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, client: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X, y, sample_weight, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`. A weight of k equals a row
            repeated k times. Least squares take a `y` of several columns too.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any pass, naming the remedy (NaN and infinity: during the first pass).
        TrainingError
            When the fit cannot continue.
        """
        self._clear_fitted()
        self._fit(X, y, sample_weight, client)
        return self

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        client: Any,
        *,
        classes: Any = None,
        reset: bool = True,
    ) -> None:
        """Fit, and set the fitted attributes.

        `classes` are all labels, if y need not hold each of them; without `reset`, X must have
        the features of the last fit.
        """
        self._check_params()
        run, class_weight = self._run_settings(), self._params()["class_weight"]
        collection = self._make_collection(X, y, sample_weight, reset=reset)
        # The client saves checkpoints itself: a Checkpoint is not called as other callbacks are.
        callbacks = self._make_callbacks(None, excluded_types=(Checkpoint,))
        client = choose_client(self, client, collection)
        checkpoint = self._checkpoint()
        with (
            self._fixed_random_state(checkpoint) as seed,
            FitJob(collection, client, run, callbacks) as job,
        ):
            job.engine.reserve_memory(self._made_share)
            weighted = collection.is_weighted  # batches may hold weights
            rows = job.rows = self._dataset_info(job, classes, class_weight, weighted)
            model, solver = self._problem(rows)
            start = self._starting_parameters(model, rows)
            # Rows of trees are binned in host memory, whatever the device.
            if isinstance(solver, RowSolver):
                job.lay_out_sum_lanes(
                    solver.max_passes, on_host=True, bytes_per_lane=solver.bytes_per_lane
                )
            else:
                job.lay_out_sum_lanes(solver.max_passes)
            fit = job.plan_rounds(model, solver, start)
            result = job.train_rounds(fit, checkpoint, seed)
            # The solution of an interrupted solver is that of its last whole iteration.
            solution = result.state
            assert isinstance(solution, Solution)
            self._set_fitted(solution, model, rows)
            self._set_row_shape(rows.summary.row_shape)
            self._set_n_iter(solution)
            self.history_ = job.make_history(fit, result)
        # After the attributes are set: an interrupted fit leaves a usable model.
        result.raise_if_interrupted(len(self.history_))
        self._warn(solution)

    def _checkpoint(self) -> Checkpoint | None:
        """Return the Checkpoint among the callbacks; None without."""
        param = self._params()["callbacks"]
        callbacks = param if isinstance(param, list | tuple) else [param]
        checkpoints = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
        if len(checkpoints) > 1:
            raise InvalidParameterError("callbacks contains several Checkpoints. Give one.")
        return checkpoints[0] if checkpoints else None

    @contextmanager
    def _fixed_random_state(self, checkpoint: Checkpoint | None) -> Iterator[int | None]:
        """Set `random_state` to a drawn seed during a fit that saves checkpoints; yield the seed.

        It yields None if `random_state` is given, or is no parameter.
        """
        params = self._all_params()
        if checkpoint is None or params.get("random_state", 0) is not None:
            yield None
            return
        # A resumed fit takes the seed of its file: with other draws it would be another fit.
        saved = load_saved_seed(checkpoint) if checkpoint.resume else None
        seed = seed_of(None) if saved is None else saved
        self.random_state: Any = seed
        try:
            yield seed
        finally:
            self.random_state = None

    def _failure(self, n_iter: int) -> str:
        """Return the beginning of the warning of a fit that has not converged."""
        return f"{type(self).__name__} failed to converge after {n_iter} iteration(s)"

    def _warn(self, solution: Solution) -> None:
        """Issue the solver's warnings, and one if it has not converged."""
        for text in solution.extra.get("warnings", ()):
            warnings.warn(text, ConvergenceWarning, stacklevel=user_stack_level())
        if not solution.converged:
            warnings.warn(
                f"{self._failure(solution.n_iter)}: {solution.message}. Increase the number of "
                "iterations, max_iter, scale the features (StandardScaler), or penalise more.",
                ConvergenceWarning,
                stacklevel=user_stack_level(),
            )
