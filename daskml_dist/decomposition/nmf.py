"""`NMF`: parameters, checks of initial matrices, and the weights of new rows.

X is about ``W @ H``: H, the components, has the size of the features and is fitted; W has a row for
each row of X and is not kept, since the weights of a row follow from the row and H. The iterations
are in `solvers/nmf.py`, the multiplicative updates in `models/nonnegative.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from daskml_dist.backends.base import Backend
from daskml_dist.backends.devices import get_backend
from daskml_dist.data.collection import take_named_columns
from daskml_dist.decomposition.principal_components import Array, BaseComponents
from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.models.nonnegative import MultiplicativeUpdates, check_signs
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.parameters.checks import check_count, check_flag, check_number, check_one_of
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution, Solver
from daskml_dist.solvers.nmf import (
    LeastSquaresNMF,
    MultiplicativeNMF,
    NMFInitializer,
    solve_row_weights,
)
from daskml_dist.training.dataset_info import DatasetInfo, DataSummary

_INIT_METHODS = ("nndsvd", "nndsvda", "nndsvdar", "random", "custom")
#: Values of beta for the divergences that have names.
_BETAS_BY_NAME = {"frobenius": 2.0, "kullback-leibler": 1.0, "itakura-saito": 0.0}
#: Coordinate descent over the weights of a row in `transform` may take at least this many sweeps,
#: and ends at a relative change of at most this, whatever `max_iter` and `tol` of the fit are: the
#: weights are the result here, and sweeps of one row are cheap.
_MIN_SWEEP_LIMIT, _MAX_SWEEP_TOL = 1000, 1e-5
#: Most entries of the components that a process should hold: 2 GiB of float64.
_MAX_COMPONENT_ENTRIES = 1 << 28


class NMF(BaseComponents):
    """Non-negative matrix factorisation ``X = W @ H`` of all rows.

    Rows stay where they are, in memory or streamed; what travels in each round has the size of the
    components H.

    Parameters
    ----------
    n_components : int, "auto" or None, default="auto"
        ``"auto"``: the rows of a given `H`, or else as None: the number of features.
    init : {"random", "nndsvd", "nndsvda", "nndsvdar", "custom"} or None, default=None
        As in scikit-learn. ``"nndsvd"``: non-negative parts of singular vectors, whose zeros are
        kept, replaced by the mean of X (``"nndsvda"``) or by small random numbers
        (``"nndsvdar"``). ``"random"``: random numbers. ``"custom"``: the `W` and `H` given to
        :meth:`fit`. None: ``"nndsvda"`` if there are at least as many rows and features as
        components, else ``"random"``.
    solver : {"cd", "mu"}, default="cd"
        ``"cd"``: in each pass the optimal weights of each row, by coordinate descent; between two
        passes sweeps of coordinate descent over the components, which are then extrapolated (Ang
        and Gillis). No state of the rows is kept. ``"mu"``: multiplicative updates, step by step
        those of scikit-learn, for any `beta_loss`.
    beta_loss : float or {"frobenius", "kullback-leibler", "itakura-saito"}, default="frobenius"
        Divergence that is minimised; ``"cd"`` minimises ``"frobenius"`` only.
    tol : float, default=1e-4
        ``"cd"`` ends when the L1 norm of the components' projected gradient has fallen to this
        share of the first. ``"mu"`` ends when 10 steps lower the error by less than this share of
        the first error.
    max_iter : int, default=200
        Most iterations.
    random_state : int, RandomState instance or None, default=None
        Seed of random numbers.
    alpha_W : float, default=0.0
        Penalty on weights, multiplied by the number of features.
    alpha_H : float or "same", default="same"
        Penalty on components, multiplied by the number of rows.
    l1_ratio : float, default=0.0
        Share of the L1 norm in the penalties; the rest is half the squared L2 norm.
    shuffle : bool, default=False
        Ignored.

    Attributes
    ----------
    n_components_ : int
    reconstruction_err_ : float
        Root of twice the divergence of all rows; for "frobenius" the norm of ``X - W @ H``.
    n_iter_ : int

    References
    ----------
    D. D. Lee and H. S. Seung, "Algorithms for non-negative matrix factorization", NIPS 2000.
    C. Fevotte and J. Idier, "Algorithms for nonnegative matrix factorization with the
    beta-divergence", Neural Computation 23(9), 2011. A. M. S. Ang and N. Gillis, "Accelerating
    nonnegative matrix factorization algorithms using extrapolation", Neural Computation 31(2),
    2019.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.decomposition import NMF
    >>> X = np.array([[1, 1], [2, 1], [3, 1.2], [4, 1], [5, 0.8], [6, 1]])
    >>> model = NMF(n_components=2, init="random", random_state=0).fit(X)
    >>> bool(model.reconstruction_err_ < 0.01)
    True
    """

    _multi_output = True

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        init: str | None = None,
        solver: str = "cd",
        beta_loss: float | str = "frobenius",
        tol: float = 1e-4,
        max_iter: int = 200,
        random_state: Any = None,
        alpha_W: float = 0.0,
        alpha_H: float | str = "same",
        l1_ratio: float = 0.0,
        verbose: int = 0,
        shuffle: bool = False,
        run: Run | None = None,
        device: str = "auto",
        callbacks: Any = None,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.solver = solver
        self.beta_loss = beta_loss
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.alpha_W = alpha_W
        self.alpha_H = alpha_H
        self.l1_ratio = l1_ratio
        self.verbose = verbose
        self.shuffle = shuffle
        self.run = run
        self.device = device
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    # -- fitting -------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: None = None,
        sample_weight: Any = None,
        *,
        W: Any = None,
        H: Any = None,
        client: Any = None,
    ) -> Self:
        """Find the components.

        Parameters
        ----------
        X, sample_weight, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`; no number below 0. A weight of
            k equals a row repeated k times.
        y : ignored
        W : array-like or dask Array of shape (n_rows, n_components), or None
            Initial weights, for ``init="custom"`` and ``solver="mu"``; chunked by rows as X.
        H : array-like of shape (n_components, n_features), or None
            Initial components, for ``init="custom"``.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any pass, naming the remedy (NaN, infinity and negative numbers: during the first
            pass).
        DivergedError
            The squares of the rows overflow.
        TrainingError
            When the fit cannot go on.
        """
        # Read by `_check_params` and `_problem`; not an attribute of the fitted estimator.
        self._user_factors = None if H is None else self._check_matrix("H", H), W
        try:
            self._fit(X, W, sample_weight, client)
        finally:
            del self._user_factors
        return self

    def fit_transform(
        self,
        X: Any,
        y: None = None,
        sample_weight: Any = None,
        *,
        W: Any = None,
        H: Any = None,
        client: Any = None,
    ) -> Any:
        """Fit the components and :meth:`transform` the same rows; parameters as :meth:`fit`."""
        return self.fit(X, None, sample_weight, W=W, H=H, client=client).transform(X)

    def _prepare_inputs(
        self, X: Any, y: Any, sample_weight: Any, *, labels_stay: bool = False
    ) -> tuple[Any, Any, Any]:
        # The initial weights W belong to the rows, as targets do, and travel in their place.
        return take_named_columns(X, y, sample_weight)

    def _set_n_iter(self, solution: Solution) -> None:
        self.n_iter_ = solution.n_iter

    def _check_params(self) -> None:
        n = self.n_components
        if not (n is None or (isinstance(n, str) and n == "auto")):
            check_count("n_components", n, '"auto" or None')
        check_one_of("init", self.init, (None, *_INIT_METHODS))
        check_one_of("solver", self.solver, ("cd", "mu"))
        if isinstance(self.beta_loss, str) or not isinstance(self.beta_loss, Real):
            check_one_of("beta_loss", self.beta_loss, tuple(_BETAS_BY_NAME))
        for name in ("tol", "alpha_W"):
            check_number(name, getattr(self, name))
        if not (isinstance(self.alpha_H, str) and self.alpha_H == "same"):
            check_number("alpha_H", self.alpha_H, hint='>= 0, or "same"')
        check_number("l1_ratio", self.l1_ratio, lambda v: 0 <= v <= 1, "from 0 to 1")
        check_count("max_iter", self.max_iter)
        check_flag("shuffle", self.shuffle)
        if self.solver == "cd" and self._beta != 2:
            raise InvalidParameterError(
                f"Invalid beta_loss parameter: solver 'cd' does not handle beta_loss = "
                f"{self.beta_loss!r}. Use solver='mu'."
            )
        self._check_initial_matrices()

    def _check_initial_matrices(self) -> None:
        """Check whether W and H were given as `init` needs them; their shapes are checked later."""
        H, W = self._user_factors
        if self.init != "custom":
            if H is not None or W is not None:
                raise InvalidParameterError(
                    f"W or H was given, but init={self.init!r} uses neither. Use init='custom'."
                )
            return
        if H is None or (W is None and self.solver == "mu"):
            raise InvalidParameterError(
                f"init='custom' starts from W and H, but {'H' if H is None else 'W'} is None. "
                f"Pass {'H' if H is None else 'W'}."
            )

    @staticmethod
    def _check_matrix(name: str, values: Any) -> Array:
        """Return a matrix of finite numbers >= 0, or raise `InvalidParameterError`."""
        try:
            matrix = np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidParameterError(f"{name} is not an array of numbers: {error}.") from error
        if matrix.ndim != 2 or not np.isfinite(matrix).all() or (matrix < 0).any():
            raise InvalidParameterError(
                f"Negative values in data passed to NMF (input {name}), or NaN, or another shape "
                "than two dimensions. Give a matrix of finite numbers >= 0."
            )
        return matrix

    @property
    def _beta(self) -> float:
        """Return beta of the divergence that `beta_loss` names."""
        if isinstance(self.beta_loss, str):
            return _BETAS_BY_NAME[self.beta_loss]
        return float(self.beta_loss)

    def _problem(self, rows: DatasetInfo) -> tuple[Unlabelled, Solver]:
        n, d = rows.summary.n_rows, rows.summary.n_features
        k, init = self._resolve_n_components(d), self._resolve_init(n, d)
        if self._user_factors[1] is not None:
            self._check_initial_weights(rows.summary, k)
        # As in scikit-learn the penalty on W grows with the features, that on H with the rows
        # (which the solver multiplies by).
        l1, l2 = self._scaled_penalties
        options: dict[str, Any] = {
            "begin": NMFInitializer(k, init, *self._draw_initial(init, k, d), rows.weight_sum / n),
            "max_iter": int(self.max_iter),
            "tol": float(self.tol),
            "l1_rows": d * l1[0],
            "l2_rows": d * l2[0],
            "l1": l1[1],
            "l2": l2[1],
            "n_features": d,
        }
        if self.solver == "cd":
            return Unlabelled(d), LeastSquaresNMF(**options)
        return Unlabelled(d), MultiplicativeNMF(beta=self._beta, **options)

    def _resolve_n_components(self, d: int) -> int:
        """Return the number of components for `d` features; raise if H has another shape."""
        H = self._user_factors[0]
        auto = isinstance(self.n_components, str)  # "auto", as `_check_params` has found
        k = d if self.n_components is None or auto else int(self.n_components)
        if H is not None:
            k = len(H) if auto else k
            if H.shape != (k, d):
                raise InvalidParameterError(
                    f"Array with wrong shape passed to NMF (input H). Expected {(k, d)}, but got "
                    f"{H.shape}. Give one row per component and one column per feature of X."
                )
        if k * d > _MAX_COMPONENT_ENTRIES:
            raise InvalidParameterError(
                f"n_components={self.n_components!r} of {d:,} features: components of {k * d:,} "
                "numbers do not fit in the memory of one process. Ask for fewer components."
            )
        return k

    @staticmethod
    def _check_initial_weights(summary: DataSummary, k: int) -> None:
        """Check that the initial weights W are of `k` components and not negative."""
        # W took the place of the targets, so the summary of the targets is that of W.
        if (n_columns := len(summary.targets.mean)) != k:
            raise InvalidParameterError(
                f"Array with wrong second dimension passed to NMF (input W). Expected {k}, but "
                f"got {n_columns}. Give one column per component."
            )
        if summary.target_range.min() < 0:
            raise InvalidParameterError(
                "Negative values in data passed to NMF (input W). Give numbers >= 0."
            )

    def _resolve_init(self, n: int, d: int) -> str:
        """Return the initialisation for n rows of d features."""
        k = self._resolve_n_components(d)
        # A matrix has no more singular vectors than rows or columns.
        fits = k <= min(n, d)
        if self.init is None:
            return "nndsvda" if fits else "random"
        if self.init.startswith("nndsvd") and not fits:
            raise InvalidParameterError(
                f"init = {self.init!r} can only be used when n_components <= min(n_samples, "
                f"n_features), and {k} is not <= min({n}, {d}). Ask for fewer components, or use "
                "init='random'."
            )
        if self.solver == "mu" and self.init == "nndsvd":
            warnings.warn(
                "The multiplicative update ('mu') solver cannot update zeros present in the "
                "initialization, of which init='nndsvd' makes many. Use init='nndsvda'.",
                UserWarning,
                stacklevel=user_stack_level(),
            )
        return str(self.init)

    def _draw_initial(self, init: str, k: int, d: int) -> tuple[int, Array | None]:
        """Return a seed and, for random components, normal numbers in scikit-learn's order."""
        generator = check_random_state(self.random_state)
        drawn = generator.standard_normal((k, d)).T if init == "random" else None
        return int(generator.randint(2**31 - 1)), drawn

    @property
    def _scaled_penalties(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the L1 penalties of weights and components, then their L2 penalties."""
        alpha_H = self.alpha_W if isinstance(self.alpha_H, str) else self.alpha_H
        alphas = float(self.alpha_W), float(alpha_H)
        ratio = float(self.l1_ratio)
        return (alphas[0] * ratio, alphas[1] * ratio), (
            alphas[0] * (1 - ratio),
            alphas[1] * (1 - ratio),
        )

    def _starting_parameters(self, model: Unlabelled, rows: DatasetInfo) -> NDArray[Any] | None:
        H: Array | None = self._user_factors[0]
        # The solver's parameters have a row for each feature.
        return None if H is None else np.ascontiguousarray(H.T)

    def _set_fitted(self, solution: Solution, model: Unlabelled, rows: DatasetInfo) -> None:
        self.components_ = np.ascontiguousarray(solution.w.T)
        self.n_components_ = len(self.components_)
        # In the user's weights, which the fit scales to a mean of 1. Rounding may leave it below 0.
        error = 2 * max(0.0, float(solution.extra["error"])) / (rows.weight_scale or 1.0)
        self.reconstruction_err_ = float(np.sqrt(error))
        self.n_features_in_ = model.n_features

    # -- functions of rows ---------------------------------------------------------------------

    def _make_projection(self) -> Callable[[Any], NDArray[Any]]:
        l1, l2 = self._scaled_penalties
        d = self.n_features_in_
        # The penalties of one row's weights, as in the fit.
        options = self._beta, d * l1[0], d * l2[0], int(self.max_iter), float(self.tol)
        return RowWeights(self.components_, *options)


@dataclass(frozen=True, eq=False)
class RowWeights:
    """Function of rows: their optimal weights, each row's independent of the others.

    Parameters
    ----------
    components : ndarray of shape (k, n_features)
    beta : float
        Parameter of the divergence.
    l1, l2 : float
        Penalties on the weights of a row.
    max_iter : int
    tol : float
    """

    components: Array
    beta: float
    l1: float
    l2: float
    max_iter: int
    tol: float
    stays_on_device: ClassVar[bool] = True
    # A weight of 0 may stand for NaN.
    hides_not_finite: ClassVar[bool] = True

    def __call__(self, X: Any) -> NDArray[Any]:
        """Return the weights, in the dtype of the rows."""
        return np.asarray(self.on_device(get_backend("cpu"), X.dtype)(X))

    def on_device(self, backend: Backend, dtype: Any) -> Callable[[Any], Any]:
        """Return the function of rows of a dtype on a device, where the weights stay."""
        across = backend.to_device(np.ascontiguousarray(self.components.T, dtype=dtype))
        updates = MultiplicativeUpdates(across, self.beta, self.l1, self.l2, backend)

        def find_weights(X: Any) -> Any:
            rows = backend.rows(X, slice(0, X.shape[0]))
            check_signs(rows)
            if self.beta != 2:
                return updates.settled(updates.rows(rows), self.max_iter, self.tol)
            # Least squares with W >= 0, from the products of components and of rows with them.
            max_sweeps, tol = max(_MIN_SWEEP_LIMIT, self.max_iter), min(_MAX_SWEEP_TOL, self.tol)
            products = updates.products(rows)
            return solve_row_weights(updates.gram, products, self.l1, self.l2, max_sweeps, tol)

        return find_weights
