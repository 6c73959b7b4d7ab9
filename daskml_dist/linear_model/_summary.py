"""Inference for linear models that are fitted without a penalty: `summary` of an estimator.

One more pass over the rows computes the sums for standard errors, at the fitted coefficients: the
triangular factor of the weighted design (by QR of blocks, merged by QR, which keeps twice the
digits that the Gram matrix would), scores of rows and their products, deviances and moments of the
target. A second pass is made only if a term depends on a sum of the first: leverages (HC2, HC3),
and likelihoods that depend on the dispersion without a closed form.

With mean m of a row, link g(m) = x'b, variance function V and weight w, the score of a row is
``w (y - m) / (V(m) g'(m)) x``, the expected information of all rows ``X' W X`` with
``W = w / (V(m) g'(m)^2)`` (P. McCullagh and J. A. Nelder, "Generalized linear models", 1989), and
the sandwich ``H^-1 (sum of s s') H^-1`` (H. White, Econometrica 48, 1980), H being the observed
information.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special, stats

from daskml_dist.backends.row_slices import row_slices
from daskml_dist.data.blocks import Block, check_finite_rows, check_length
from daskml_dist.data.collection import Collection, as_collection, count_rows_of_block
from daskml_dist.data.conversion import as_column, describe_block
from daskml_dist.data.reduce import reduce_parts
from daskml_dist.data.row_checks import check_group_labels, check_row_shape, make_no_rows_error
from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.losses.deviance import Tweedie
from daskml_dist.parameters.checks import check_number, check_one_of

Floats = NDArray[np.float64]

#: Kinds of covariance that a user may choose.
COVARIANCES = ("nonrobust", "HC0", "HC1", "HC2", "HC3", "cluster")
#: Entries of a piece of rows that is processed at once (8 MiB in float64).
_PIECE_ENTRIES = 2**20
#: Diagonal of the triangular factor, as a share of a column's norm, below which columns count as
#: dependent.
_DEPENDENT = 1e-12
#: Smallest eigenvalue of correlations of coefficients, as a share of the largest, that is not
#: attributed to rounding.
_SINGULAR = 1e-10
#: Smallest difference of a row's leverage from 1 that HC2 and HC3 divide by.
_MIN_REST = 1e-10
#: Newton step to the optimum, in standard errors, above which a fit counts as not converged.
_MAX_STEP = 1e-2


# --- families: the differences between models ---------------------------------------------------


class _Family(ABC):
    """Distribution and link of a model.

    Attributes
    ----------
    title, model, method : str
        Words of the printed table.
    fixed_scale : bool
        Whether the dispersion is 1; else it is estimated.
    uses_t : bool
        Whether tests use the t distribution if the covariance is not robust.
    is_canonical : bool
        Whether the observed information is the expected one.
    """

    title: ClassVar[str] = "Generalized Linear Model Regression Results"
    model: ClassVar[str] = "GLM"
    method: ClassVar[str] = "Maximum Likelihood"
    fixed_scale: ClassVar[bool] = False
    uses_t: ClassVar[bool] = False
    is_canonical: ClassVar[bool] = False
    name: str
    link: str

    @property
    def is_fixed_at_one(self) -> bool:
        """Return whether the saturated likelihood is needed only at the dispersion 1."""
        return self.fixed_scale

    def sum_null(self, y: Floats, weight: Floats, mean: float) -> float:
        """Return half the deviance of some rows from their mean."""
        # For counts that are all 0, the logarithm of the mean is infinite, and the deviance 0.
        if mean == 0:
            return 0.0
        return float(weight @ self.half_deviance(y, np.full(len(y), mean)))

    @abstractmethod
    def evaluate(self, y: Floats, raw: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return means, slopes of the log likelihood, observed and expected curvatures, by row."""

    @abstractmethod
    def half_deviance(self, y: Floats, mean: Floats) -> Floats:
        """Return half the deviance of each row."""

    @abstractmethod
    def variance(self, mean: Floats) -> Floats:
        """Return the variance function."""

    @abstractmethod
    def saturated(self, y: Floats, weight: Floats, scale: float) -> Floats:
        """Return the log likelihood of each row whose mean is its target; NaN where unknown."""


@dataclass(frozen=True)
class _TweedieFamily(_Family):
    """Tweedie families: normal, Poisson, gamma, inverse Gaussian and those between."""

    loss: Tweedie

    @property
    def fixed_scale(self) -> bool:  # type: ignore[override]
        """Return whether the dispersion is 1, like Poisson's."""
        return self.loss.power == 1

    @property
    def is_canonical(self) -> bool:  # type: ignore[override]
        """Return whether the link is canonical: log for Poisson, identity for normal."""
        return self.loss.power == (0 if self.link == "Identity" else 1)

    @property
    def is_fixed_at_one(self) -> bool:
        """Return whether the saturated likelihood is needed only at the dispersion 1."""
        return self.loss.power in (0, 1)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Name of the distribution."""
        names = {0.0: "Gaussian", 1.0: "Poisson", 2.0: "Gamma", 3.0: "InverseGaussian"}
        return names.get(self.loss.power, f"Tweedie(p={self.loss.power:g})")

    @property
    def link(self) -> str:  # type: ignore[override]
        """Name of the link."""
        return "Identity" if getattr(self.loss, "identity", False) else "Log"

    def evaluate(self, y: Floats, raw: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return means, slopes of the log likelihood, observed and expected curvatures."""
        mean = self.loss.inverse_link(raw)
        _, gradient, observed = self.loss.value_gradient_hessian(y, raw)
        # (dm/d raw)^2 / V(m): dm/d raw is 1 for the identity link, and m for the logarithm.
        slope = np.ones_like(mean) if self.link == "Identity" else mean
        expected = observed if self.is_canonical else slope**2 / self.variance(mean)
        return mean, -gradient, observed, expected

    def half_deviance(self, y: Floats, mean: Floats) -> Floats:
        """Return half the deviance of each row."""
        return np.asarray(self.loss.half_deviance(y, mean))

    def variance(self, mean: Floats) -> Floats:
        """Return the mean to the power of the family."""
        return np.asarray(mean**self.loss.power)

    def saturated(self, y: Floats, weight: Floats, scale: float) -> Floats:
        """Return the log likelihood of each row whose mean is its target."""
        phi, power = scale / weight, self.loss.power
        if power == 0:
            return -np.log(2 * np.pi * phi) / 2
        if power == 1:
            return np.asarray(weight * (special.xlogy(y, y) - y - special.gammaln(y + 1)))
        if power == 2:
            return np.asarray(-np.log(phi) / phi - 1 / phi - special.gammaln(1 / phi) - np.log(y))
        if power == 3:
            return -np.log(2 * np.pi * phi * y**3) / 2
        if not 1 < power < 2:
            return np.full(len(y), np.nan)  # no closed form
        return self._saturate_compound(y, phi)

    def _saturate_compound(self, y: Floats, phi: Floats) -> Floats:
        """Return the same for a compound Poisson-gamma distribution, by Wright's Bessel function.

        P. Dunn and G. Smyth, "Series evaluation of Tweedie exponential dispersion model densities",
        Statistics and Computing 15, 2005.
        """
        p, log_likelihoods = self.loss.power, np.zeros(len(y))
        is_positive = y > 0  # a row of 0 has the mean 0, and the likelihood 1
        positives, phi = y[is_positive], phi[is_positive]
        order = (2 - p) / (1 - p)
        x = ((p - 1) * phi / positives) ** order / ((2 - p) * phi)
        density = _log_bessel(-order, x) - np.log(positives)
        # y theta - kappa at the mean y.
        log_likelihoods[is_positive] = (
            density + positives ** (2 - p) * (1 / (1 - p) - 1 / (2 - p)) / phi
        )
        return log_likelihoods


def _log_bessel(order: float, x: Floats) -> Floats:
    """Return the logarithm of Wright's Bessel function, which itself overflows early."""
    # In SciPy 1.14 and newer.
    function = getattr(special, "log_wright_bessel", None)
    if function is not None:
        return np.asarray(function(order, 0, x))
    return np.asarray(np.log(special.wright_bessel(order, 0, x)))


class _LeastSquares(_TweedieFamily):
    """Normal distribution with tests by the t distribution, as for least squares."""

    title = "OLS Regression Results"
    model = "OLS"
    method = "Least Squares"
    uses_t = True


class _BinaryLogit(_Family):
    """Labels of two classes, with the logit link; targets are 0 and 1."""

    title = "Logit Regression Results"
    model = "Logit"
    method = "MLE"
    fixed_scale = True
    is_canonical = True
    name = "Binomial"
    link = "Logit"

    def evaluate(self, y: Floats, raw: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return means, slopes of the log likelihood, observed and expected curvatures."""
        mean = special.expit(raw)
        curvature = mean * special.expit(-raw)
        return mean, y - mean, curvature, curvature

    def half_deviance(self, y: Floats, mean: Floats) -> Floats:
        """Return half the deviance of each row: minus its log likelihood."""
        return -np.asarray(special.xlogy(y, mean) + special.xlog1py(1 - y, -mean))

    def variance(self, mean: Floats) -> Floats:
        """Return the variance of a label."""
        return mean * (1 - mean)

    def saturated(self, y: Floats, weight: Floats, scale: float) -> Floats:
        """Return 0: a label with probability 1 has the likelihood 1."""
        return np.zeros(len(y))


# --- sums over rows ---------------------------------------------------------------------------


@dataclass(eq=False)
class _FirstSums:
    """Sums of the first pass; those of parts are merged."""

    n_rows: int
    weight: float
    #: Triangular factor of the rows times the square roots of their expected information.
    factor: Floats
    #: Observed information, if it differs from the expected one.
    observed: Floats | None
    score: Floats
    #: Triangular factor of the rows' scores; its square is the sum of their products.
    meat: Floats
    deviance: float
    pearson: float
    #: Weighted mean of the targets, and half the deviance of all targets from it.
    mean: float
    null: float
    #: Sums of the saturated log likelihood at the dispersion 1.
    saturated: float
    #: Sums of scores by cluster.
    clusters: dict[Any, Floats]


@dataclass(frozen=True, eq=False)
class _BlockSums:
    """Sums over the rows of a block, at the parameters of a fit; picklable.

    Parameters
    ----------
    family : _Family
    params : ndarray of float64 of shape (n_params,)
        Intercept first, if there is one.
    intercept : bool
    make_block : callable
    row_shape : tuple of int
    classes : ndarray or None
        Labels of classification; the second counts as 1.
    """

    family: _Family
    params: Floats
    intercept: bool
    make_block: Any
    row_shape: tuple[int, ...]
    classes: Any

    def _iterate(self, index: int, X: Any, y: Any, w: Any) -> Any:
        """Yield (slice, design, targets, weights, mask of rows with a weight) in pieces."""
        block: Block = self.make_block(index, X, y, w)
        n = block.n_rows
        if not n:
            return
        check_row_shape(block.rows.shape[1:], self.row_shape, index=index)
        y = np.asarray(block.y)
        target = y if self.classes is None else _encode_labels(y, self.classes)
        for piece in row_slices(n, max(_PIECE_ENTRIES // len(self.params), 1)):
            rows = block.rows[piece]
            check_finite_rows(rows, index, piece.start)
            rows = (rows.toarray() if hasattr(rows, "toarray") else rows).astype(np.float64)
            design = np.column_stack([np.ones(len(rows)), rows]) if self.intercept else rows
            user_weights = block.sample_weight
            weight = (
                np.ones(len(rows))
                if user_weights is None
                else user_weights[piece].astype(np.float64)
            )
            # A row of weight 0 does not count in the likelihood.
            keep = weight > 0
            if not keep.any():
                continue
            yield piece, design[keep], target[piece][keep].astype(np.float64), weight[keep], keep

    def first(self, index: int, X: Any, y: Any, w: Any, groups: Any = None) -> _FirstSums | None:
        """Return the sums of the first pass over a block; None without rows."""
        parts = []
        labels = None
        if groups is not None:
            labels = check_group_labels(
                as_column(groups, name="groups", index=index), "groups", index
            )
            check_length(count_rows_of_block(X), labels, "groups", index)
        for piece, design, target, weight, keep in self._iterate(index, X, y, w):
            mean, slope, observed, expected = self.family.evaluate(target, design @ self.params)
            # Scores: the gradient of each row's log likelihood in the coefficients.
            scores = (weight * slope)[:, None] * design
            center = float(weight @ target / weight.sum())
            clusters = {} if labels is None else _sum_by_label(labels[piece][keep], scores)
            saturated = 0.0
            if self.family.is_fixed_at_one:
                saturated = float(self.family.saturated(target, weight, 1.0).sum())
            parts.append(
                _FirstSums(
                    len(target),
                    float(weight.sum()),
                    _factorize([np.sqrt(weight * expected)[:, None] * design]),
                    None if self.family.is_canonical else (weight * observed * design.T) @ design,
                    scores.sum(axis=0),
                    _factorize([scores]),
                    float(weight @ self.family.half_deviance(target, mean)),
                    float(weight @ ((target - mean) ** 2 / self.family.variance(mean))),
                    center,
                    self.family.sum_null(target, weight, center),
                    saturated,
                    clusters,
                )
            )  # fmt: skip
        return _merge_first(self.family, parts) if parts else None

    def second(
        self, index: int, X: Any, y: Any, w: Any, groups: Any = None, *, inverse: Floats,
        scale: float, power: float,
    ) -> tuple[Floats, float] | None:  # fmt: skip
        """Return the factor of scores divided by leverages, and the saturated likelihood."""
        factors, saturated = [], 0.0
        for _, design, target, weight, _keep in self._iterate(index, X, y, w):
            _, slope, _, expected = self.family.evaluate(target, design @ self.params)
            # Diagonal of the hat matrix, by the inverse of the triangular factor.
            leverage = weight * expected * ((design @ inverse) ** 2).sum(axis=1)
            if power and (leverage > 1 - _MIN_REST).any():
                raise InvalidDataError(
                    f"{describe_block(index)}A single row determines a coefficient (its leverage "
                    "is 1), so HC2 and HC3 are undefined. Use cov_type='HC1', or drop the "
                    "column that is nonzero in only one row."
                )
            scores = (weight * slope / (1 - leverage) ** (power / 2))[:, None] * design
            factors.append(_factorize([scores]))
            saturated += float(self.family.saturated(target, weight, scale).sum())
        return (_factorize(factors), saturated) if factors else None


def _encode_labels(y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether labels are the second of two."""
    if not np.isin(y, classes).all():
        unknown = np.setdiff1d(y, classes)[:5].tolist()
        raise InvalidDataError(
            f"y holds labels that were not in the fit: {unknown}. Pass the rows of the fit."
        )
    return np.asarray(y == classes[1])


def _factorize(row_blocks: list[Floats]) -> Floats:
    """Return the triangular factor of stacked rows."""
    triangular: Any = np.linalg.qr(np.concatenate(row_blocks), mode="r")
    return np.asarray(triangular)


def _sum_by_label(labels: NDArray[Any], scores: Floats) -> dict[Any, Floats]:
    """Return the sum of the scores of each label's rows."""
    distinct, codes = np.unique(labels, return_inverse=True)
    sums = np.zeros((len(distinct), scores.shape[1]))
    np.add.at(sums, codes, scores)
    return dict(zip(distinct.tolist(), sums, strict=True))


def _merge_first(family: _Family, block_sums: list[_FirstSums]) -> _FirstSums:
    """Merge the sums of several parts of the rows."""
    weight = sum(part.weight for part in block_sums)
    mean = sum(part.weight * part.mean for part in block_sums) / weight
    # Deviances from the common mean: those from the means of parts, plus those of these means from
    # it.
    null = sum(
        part.null + part.weight * _compute_between(family, part.mean, mean) for part in block_sums
    )
    clusters: dict[Any, Floats] = {}
    for part in block_sums:
        for label, sums in part.clusters.items():
            clusters[label] = clusters[label] + sums if label in clusters else sums
    observed = None
    if not family.is_canonical:
        hessians = [part.observed for part in block_sums if part.observed is not None]
        observed = np.sum(hessians, axis=0)
    return _FirstSums(
        sum(part.n_rows for part in block_sums),
        weight,
        _factorize([part.factor for part in block_sums]),
        observed,
        np.sum([part.score for part in block_sums], axis=0),
        _factorize([part.meat for part in block_sums]),
        sum(part.deviance for part in block_sums),
        sum(part.pearson for part in block_sums),
        mean,
        null,
        sum(part.saturated for part in block_sums),
        clusters,
    )


def _compute_between(family: _Family, mean: float, other_mean: float) -> float:
    """Return half the deviance of one mean from another; for labels, per row."""
    if mean == other_mean:
        return 0.0
    if isinstance(family, _BinaryLogit):
        # The entropy of the part's labels is in its null deviance already.
        p, q = np.array([mean]), np.array([other_mean])
        return float((family.half_deviance(p, q) - family.half_deviance(p, p))[0])
    return float(family.half_deviance(np.array([mean]), np.array([other_mean]))[0])


def _add_second(block_sums: list[tuple[Floats, float]]) -> tuple[Floats, float]:
    """Merge the sums of the second pass."""
    factors, saturated = zip(*block_sums, strict=True)
    return _factorize(list(factors)), sum(saturated)


# --- the result -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RegressionSummary:
    """Standard errors and tests of the coefficients of a fit, and its goodness of fit.

    Its text is the table that statsmodels prints. Attributes have statsmodels' names.

    Attributes
    ----------
    names : list of str
        Names of the coefficients; ``"const"`` is the intercept, and comes first.
    params, bse, tvalues, pvalues : ndarray of float64 of shape (n_params,)
        Coefficients, standard errors, their ratio, and the probability of a larger one.
    covariance : ndarray of float64 of shape (n_params, n_params)
        Values of the coefficients.
    cov_type : str
    use_t : bool
        Whether tests use the t distribution; else the normal.
    nobs, df_model, df_resid : int
    df_inference : int
        Degrees of freedom of tests: `df_resid`, or the number of clusters less 1.
    scale : float
        Dispersion; of least squares the variance of the errors.
    llf, llnull : float
        Log likelihood of the fit, and of the intercept alone; NaN if the family has no closed form.
    deviance, null_deviance, pearson_chi2 : float

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.linear_model import LinearRegression
    >>> X = np.arange(10.0)[:, None]
    >>> y = 2 * X[:, 0] + np.tile([1.0, -1.0], 5)
    >>> found = LinearRegression().fit(X, y).summary(X, y)
    >>> found.bse.round(3).tolist(), round(found.rsquared, 3)
    ([0.647, 0.121], 0.97)
    """

    names: list[str]
    params: Floats
    covariance: Floats
    cov_type: str
    use_t: bool
    nobs: int
    df_model: int
    df_resid: int
    df_inference: int
    scale: float
    llf: float
    llnull: float
    deviance: float
    null_deviance: float
    pearson_chi2: float
    family: Any = field(repr=False)
    target_name: str = "y"

    @property
    def bse(self) -> Floats:
        """Standard errors."""
        return np.asarray(np.sqrt(np.diag(self.covariance)))

    @property
    def tvalues(self) -> Floats:
        """Coefficients divided by their standard errors (z if the normal distribution is used)."""
        return np.asarray(self.params / self.bse)

    @property
    def _distribution(self) -> Any:
        return stats.t(self.df_inference) if self.use_t else stats.norm

    @property
    def pvalues(self) -> Floats:
        """Two-sided probabilities of larger ratios if a coefficient were 0."""
        return np.asarray(2 * self._distribution.sf(np.abs(self.tvalues)))

    def conf_int(self, alpha: float = 0.05) -> Floats:
        """Return confidence intervals of the coefficients at level ``1 - alpha``.

        Parameters
        ----------
        alpha : float, default=0.05

        Returns
        -------
        ndarray of float64 of shape (n_params, 2)
        """
        check_number("alpha", alpha, lambda v: 0 < v < 1, "between 0 and 1, both excluded")
        width = self._distribution.isf(alpha / 2) * self.bse
        return np.column_stack([self.params - width, self.params + width])

    def cov_params(self) -> Floats:
        """Return the covariance of the coefficients.

        Returns
        -------
        ndarray of float64 of shape (n_params, n_params)
        """
        return self.covariance

    @property
    def has_constant(self) -> bool:
        """Return whether there is an intercept."""
        return self.names[0] == "const" and self.df_model == len(self.params) - 1

    @property
    def aic(self) -> float:
        """Akaike's information criterion."""
        return float(-2 * self.llf + 2 * len(self.params))

    @property
    def bic(self) -> float:
        """Bayes' information criterion, of the log likelihood."""
        return float(-2 * self.llf + np.log(self.nobs) * len(self.params))

    @property
    def rsquared(self) -> float:
        """Share of the deviance that is explained; for least squares R^2."""
        return 1 - self.deviance / self.null_deviance if self.null_deviance > 0 else float("nan")

    @property
    def rsquared_adj(self) -> float:
        """R^2 with squares divided by their degrees of freedom."""
        n = self.nobs - int(self.has_constant)
        return 1 - n / self.df_resid * (1 - self.rsquared)

    @property
    def fvalue(self) -> float:
        """Wald's statistic of all coefficients but the intercept, divided by their number."""
        return self._test_slopes()[0]

    @property
    def f_pvalue(self) -> float:
        """Probability of a larger `fvalue`."""
        value, rank = self._test_slopes()
        return float(stats.f.sf(value, rank, self.df_inference))

    def _test_slopes(self) -> tuple[float, int]:
        """Return Wald's statistic of all coefficients but the intercept, and their number."""
        slopes = slice(int(self.has_constant), None)
        ratios, errors = self.tvalues[slopes], self.bse[slopes]
        if not (errors > 0).all():
            return float("nan"), 0
        correlations = self.covariance[slopes, slopes] / np.outer(errors, errors)
        # With no more clusters than coefficients the correlations are singular: the Moore-Penrose
        # inverse tests as many combinations of coefficients as their rank, in units of the standard
        # errors.
        inverse, rank = linalg.pinvh(correlations, rtol=_SINGULAR, return_rank=True)
        return float(ratios @ inverse @ ratios / rank), int(rank)

    @property
    def llr(self) -> float:
        """Twice the log likelihood ratio of the fit and the intercept alone."""
        return 2 * (self.llf - self.llnull)

    @property
    def llr_pvalue(self) -> float:
        """Probability of a larger `llr`."""
        return float(stats.chi2.sf(self.llr, self.df_model))

    @property
    def prsquared(self) -> float:
        """Pseudo R^2: McFadden's for labels, else that of Cox and Snell."""
        if isinstance(self.family, _BinaryLogit):
            # Rows of one class only have the likelihood 1 without any features.
            return 1 - self.llf / self.llnull if self.llnull else float("nan")
        return float(1 - np.exp(-self.llr / self.nobs))

    def __str__(self) -> str:
        """Return the table."""
        return _print_summary(self)

    def _repr_html_(self) -> str:
        return f"<pre>{self}</pre>"


def summarize_fit(
    self: Any,
    X: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    cov_type: str = "nonrobust",
    groups: Any = None,
    use_t: bool | None = None,
) -> RegressionSummary:
    """Return standard errors, tests and intervals of the coefficients, from one more pass.

    Parameters
    ----------
    X, y, sample_weight
        The rows of the fit. Weights are inverse variances: a row counts once with any weight.
    cov_type : {"nonrobust", "HC0", "HC1", "HC2", "HC3", "cluster"}, default="nonrobust"
        Covariance of the coefficients: by the model, or robust to variances that it does not
        describe (White; HC2 and HC3 divide by leverages, in a second pass), or to dependence
        between rows of a group.
    groups : array-like, dask Array or dask Series of shape (n_rows,), or None
        Group of each row, for ``cov_type="cluster"``.
    use_t : bool or None, default=None
        Whether tests are by the t distribution; None: for least squares with ``"nonrobust"``.

    Returns
    -------
    RegressionSummary
        Its text is the table that statsmodels prints.

    Raises
    ------
    InvalidParameterError
        The fit has a penalty, several targets or classes: its coefficients are no maximum of a
        likelihood.
    InvalidDataError
        Columns depend on each other, or there are no more rows than coefficients.
    """
    check_one_of("cov_type", cov_type, COVARIANCES)
    if (groups is not None) != (cov_type == "cluster"):
        raise InvalidParameterError(
            'groups are for cov_type="cluster", which needs them. Pass both, or neither.'
        )
    self._check_fitted()
    family = _find_family(self)
    inputs = self._prepare_inputs(X, y, sample_weight)
    self._check_fitted(inputs[0])
    rows = self._align_inputs(*inputs)
    self._check_width(rows)
    rows = _add_groups(rows, inputs[0], groups)
    params, intercept = _join_params(self)
    classes = self.classes_ if self._classification else None
    sums = _BlockSums(family, params, intercept, rows.block_maker, self._row_shape, classes)
    first = reduce_parts(rows, sums.first, partial(_merge_first, family))
    if first is None:
        raise make_no_rows_error(": there is nothing to summarise")
    names = _name_params(self, intercept)
    return _finish_summary(self, sums, rows, first, names, cov_type, use_t)


def _finish_summary(
    estimator: Any, sums: _BlockSums, rows: Collection, first: _FirstSums, names: list[str],
    cov_type: str, use_t: bool | None,
) -> RegressionSummary:  # fmt: skip
    """Return the summary from sums over all rows, after a second pass if one is needed."""
    family, params, n, p = sums.family, sums.params, first.n_rows, len(sums.params)
    if n <= p:
        raise InvalidDataError(
            f"There are {n} rows of weight and {p} coefficients, so errors cannot be estimated. "
            "Use fewer features, or more rows."
        )
    inverse = _invert_factor(first.factor, names)
    information = inverse @ inverse.T  # inverse of X' W X
    df_resid = n - p
    scale = 1.0 if family.fixed_scale else first.pearson / df_resid
    if scale == 0:
        raise InvalidDataError(
            "The fit predicts every target exactly, so all standard errors would be 0. Check "
            "whether y is constant, or is also one of the features."
        )
    _warn_unfinished(information @ first.score, np.sqrt(scale * np.diag(information)))
    # The second pass.
    power = {"HC2": 1.0, "HC3": 2.0}.get(cov_type, 0.0)
    meat, saturated = first.meat, first.saturated
    if power or not family.is_fixed_at_one:
        second = partial(sums.second, inverse=inverse, scale=scale, power=power)
        meat, last = reduce_parts(rows, second, _add_second)
        saturated = saturated if family.is_fixed_at_one else last
    covariance = scale * information
    if cov_type != "nonrobust":
        if cov_type == "HC1":
            meat = meat * np.sqrt(n / df_resid)
        elif cov_type == "cluster":
            meat = _scale_clusters(first.clusters, n, df_resid)
        # Not the products of scores: with dependent columns they would lose half the digits.
        if first.observed is None:
            half_product = meat @ inverse @ inverse.T
        else:
            half_product = meat @ np.linalg.inv(first.observed)
        covariance = half_product.T @ half_product
    null = _find_null_deviance(first, sums, rows)
    if isinstance(family, _TweedieFamily) and family.loss.power == 0 and family.link == "Identity":
        # The likelihood at its own best variance; that of the intercept alone at the fit's scale.
        # At the dispersion 1, `saturated` holds the terms of the weights and of 2 pi.
        constant = first.saturated
        llf = constant - n / 2 * np.log(2 * first.deviance / n) - n / 2
        llnull = constant - n / 2 * np.log(scale) - null / scale
    else:
        if isinstance(family, _TweedieFamily) and family.loss.power == 0:
            saturated -= n / 2 * np.log(scale)  # it was summed at the dispersion 1
        llf = saturated - first.deviance / scale
        llnull = saturated - null / scale
    df_inference = len(first.clusters) - 1 if first.clusters else df_resid
    t_by_default = family.uses_t and cov_type == "nonrobust"
    return RegressionSummary(
        names, params, covariance, cov_type, t_by_default if use_t is None else bool(use_t), n,
        p - int(sums.intercept), df_resid, df_inference, scale, float(llf), float(llnull),
        2 * first.deviance, 2 * null, first.pearson, family,
    )  # fmt: skip


def _find_null_deviance(first: _FirstSums, sums: _BlockSums, rows: Collection) -> float:
    """Return half the deviance of the model without features; without an intercept, of 0."""
    if sums.intercept or not isinstance(sums.family, _LeastSquares):
        return first.null
    # Without an intercept R^2 uses squares about 0, as in statsmodels.
    return first.null + first.weight * first.mean**2 / 2


def _invert_factor(factor: Floats, names: list[str]) -> Floats:
    """Return the inverse of a triangular factor; raise if columns depend on each other."""
    norms = np.sqrt((factor**2).sum(axis=0))
    small = np.abs(np.diag(factor)) <= _DEPENDENT * norms if len(factor) == len(names) else True
    if np.any(small):
        dependent = [names[j] for j in np.flatnonzero(np.broadcast_to(small, len(names)))][:5]
        raise InvalidDataError(
            f"Columns are linear combinations of earlier ones: {dependent}. Their coefficients are "
            "undetermined and have no standard errors. Drop these columns."
        )
    inverse: Any = linalg.solve_triangular(factor, np.eye(len(factor)))
    return np.asarray(inverse)


def _warn_unfinished(step: Floats, errors: Floats) -> None:
    """Warn if the optimum is far from the coefficients, in standard errors."""
    gap = float(np.max(np.abs(step) / errors))
    if gap > _MAX_STEP:
        warnings.warn(
            f"The coefficients are {gap:.2g} standard errors from the optimum of these rows. Fit "
            "with a smaller tol, and pass the rows of the fit.",
            stacklevel=user_stack_level(),
        )


def _scale_clusters(clusters: dict[Any, Floats], n: int, df_resid: int) -> Floats:
    """Return the scores of clusters, with Stata's and statsmodels' correction for few clusters."""
    g = len(clusters)
    if g < 2:
        raise InvalidDataError(f"groups hold {g} group: clusters need two. Use cov_type='HC1'.")
    sums = np.array(list(clusters.values()))
    return np.asarray(sums * np.sqrt(g / (g - 1) * (n - 1) / df_resid))


def _add_groups(rows: Collection, X: Any, groups: Any) -> Collection:
    """Return rows whose parts also hold their groups."""
    if groups is None:
        return rows
    rows_with_groups = as_collection(X, groups, None, numeric=False, classification=True)
    if rows.kind != rows_with_groups.kind or len(rows.parts) != len(rows_with_groups.parts):
        raise InvalidDataError(
            "groups are not split like X. Pass them like X: a Dask collection with the same "
            "blocks, or in memory."
        )
    rows.parts[:] = [
        (*part, groups_part[1])
        for part, groups_part in zip(rows.parts, rows_with_groups.parts, strict=True)
    ]
    return rows


# --- estimators -------------------------------------------------------------------------------


def _find_family(estimator: Any) -> _Family:
    """Return the family of a fitted estimator; raise if its fit does not maximize a likelihood."""
    params, name = estimator._all_params(), type(estimator).__name__
    remedy = ""
    if params.get("alpha"):
        remedy = "alpha=0"
    elif "C" in params and params["penalty"] is not None and np.isfinite(params["C"]):
        remedy = "penalty=None"
    if remedy:
        raise InvalidParameterError(
            f"This {name} has a penalty, so its coefficients do not maximise the likelihood and "
            f"standard errors are meaningless. Fit with {remedy}."
        )
    if params.get("positive"):
        raise InvalidParameterError(
            "positive=True constrains the coefficients, which standard errors do not account "
            "for. Fit without it."
        )
    if params.get("class_weight") is not None:
        raise InvalidParameterError(
            "class_weight changes the likelihood, so standard errors would be wrong. Fit "
            "without it."
        )
    if estimator._classification:
        if len(estimator.classes_) != 2:
            raise InvalidParameterError(
                f"summary supports two classes, but there are {len(estimator.classes_)}. Fit one "
                "class against the others."
            )
        return _BinaryLogit()
    if np.ndim(estimator.coef_) != 1:
        raise InvalidParameterError(
            f"summary supports one target, but there are {len(estimator.coef_)}. Fit one at a time."
        )
    if hasattr(estimator, "_deviance"):
        return _TweedieFamily(estimator._deviance())
    return _LeastSquares(Tweedie(0.0, True))


def _join_params(estimator: Any) -> tuple[Floats, bool]:
    """Return the coefficients, the intercept first, and whether there is one."""
    coef = np.ravel(estimator._dense_coef()).astype(np.float64)
    intercept = bool(estimator._all_params()["fit_intercept"])
    constant = np.ravel(estimator.intercept_).astype(np.float64)
    return (np.concatenate([constant, coef]) if intercept else coef), intercept


def _name_params(estimator: Any, intercept: bool) -> list[str]:
    """Return the names of the coefficients, as in statsmodels."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        names = [f"x{j + 1}" for j in range(estimator.n_features_in_)]
    return [*(["const"] if intercept else []), *map(str, names)]


# --- printing -----------------------------------------------------------------------------------

#: Columns of a printed table.
_WIDTH = 78


def _print_summary(summary: RegressionSummary) -> str:
    """Return the table that statsmodels prints, without dates and tests of residuals."""
    family = summary.family
    left_cells = [
        ("Dep. Variable:", summary.target_name), ("Model:", family.model),
        ("Method:", family.method), ("No. Observations:", f"{summary.nobs}"),
        ("Df Residuals:", f"{summary.df_resid}"), ("Df Model:", f"{summary.df_model}"),
        ("Covariance Type:", summary.cov_type),
    ]  # fmt: skip
    likelihood = [("Log-Likelihood:", f"{summary.llf:#.5g}")]
    criteria = [("AIC:", f"{summary.aic:#.4g}"), ("BIC:", f"{summary.bic:#.4g}")]
    if isinstance(family, _LeastSquares):
        centred = "" if summary.has_constant else " (uncentered)"
        right_cells = [
            (f"R-squared{centred}:", f"{summary.rsquared:.3f}"),
            (f"Adj. R-squared{centred}:", f"{summary.rsquared_adj:.3f}"),
            ("F-statistic:", f"{summary.fvalue:#.4g}"),
            ("Prob (F-statistic):", f"{summary.f_pvalue:#6.3g}"),
            *likelihood, *criteria,
        ]  # fmt: skip
    elif isinstance(family, _BinaryLogit):
        right_cells = [
            ("Pseudo R-squ.:", f"{summary.prsquared:#.4g}"), *likelihood,
            ("LL-Null:", f"{summary.llnull:#.5g}"), ("LLR p-value:", f"{summary.llr_pvalue:#.4g}"),
            *criteria,
        ]  # fmt: skip
    else:
        left_cells[2:2] = [("Model Family:", family.name), ("Link Function:", family.link)]
        right_cells = [
            ("Scale:", f"{summary.scale:#.5g}"), *likelihood,
            ("Deviance:", f"{summary.deviance:#.5g}"),
            ("Pearson chi2:", f"{summary.pearson_chi2:#.3g}"),
            ("Pseudo R-squ. (CS):", f"{summary.prsquared:#.4g}"), *criteria,
        ]  # fmt: skip
    statistic = "t" if summary.use_t else "z"
    header = ["coef", "std err", statistic, f"P>|{statistic}|", "[0.025", "0.975]"]
    width = max(max(map(len, summary.names)) + 2, _WIDTH - 6 * 11)
    values = np.column_stack(
        [summary.params, summary.bse, summary.tvalues, summary.pvalues, summary.conf_int()]
    )
    table = ["".join([" " * width, *(f"{text:>11}" for text in header)])]
    table.append("-" * len(table[0]))
    for name, row in zip(summary.names, values, strict=True):
        cells = [_format(v, 4 if i == 0 else 3) for i, v in enumerate(row)]
        cells[3] = f"{row[3]:.3f}"
        table.append("".join([f"{name:<{width}}", *(f"{cell:>11}" for cell in cells)]))
    lines = max(len(table[0]), _WIDTH)
    rule = "=" * lines
    top = _join_columns(left_cells, right_cells, lines)
    return "\n".join([family.title.center(lines).rstrip(), rule, *top, rule, *table, rule])


def _join_columns(
    left_cells: list[tuple[str, str]], right_cells: list[tuple[str, str]], width: int
) -> list[str]:
    """Return lines of two columns of names and values."""
    half_width = (width - 3) // 2
    lines = []
    for i in range(max(len(left_cells), len(right_cells))):
        cells = []
        for column in (left_cells, right_cells):
            name, value = column[i] if i < len(column) else ("", "")
            cells.append(f"{name}{value:>{half_width - len(name)}}")
        lines.append("   ".join(cells).rstrip())
    return lines


def _format(value: float, digits: int) -> str:
    """Return a number in statsmodels' form: with decimals if these suffice, else an exponent."""
    has_enough_decimals = value == 0 or 1e-4 <= abs(value) < 1e4
    return f"{value:.{digits}f}" if has_enough_decimals else f"{value:.{digits}g}"
