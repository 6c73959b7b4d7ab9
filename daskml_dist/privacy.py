"""Differentially private gradient steps (DP-SGD): the budget, the noise, and the accountant.

Each step of a private fit draws every row with the same probability (Poisson sampling), clips the
gradient of each drawn row to a norm, and adds Gaussian noise to the sum (Abadi et al. 2016). `DP`
is the user's budget; `PrivateSteps` is derived from it once the number of steps is known: the
sampling rate, and the noise with which the steps spend exactly the budget. The accountant computes
the Rényi differential privacy of the steps (`compute_step_rdp`) and converts it to an epsilon
(`compute_epsilon`).

Two data sets are neighbours if one has one row more than the other. The number of rows and the set
of labels are assumed to be public.

References
----------
M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016.
I. Mironov, K. Talwar and L. Zhang, "Rényi Differential Privacy of the Sampled Gaussian Mechanism",
2019.
C. Canonne, G. Kamath and T. Steinke, "The Discrete Gaussian for Differential Privacy", 2020
(Proposition 12: from Rényi divergences to epsilon).
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject

__all__ = [
    "DP",
    "RDP_ORDERS",
    "GaussianNoise",
    "NoiseStream",
    "PrivacySpent",
    "PrivateSteps",
    "compute_epsilon",
    "compute_step_rdp",
    "find_noise_multiplier",
]

#: Orders of the Rényi divergences that are tracked; the order with the smallest epsilon counts.
#: These are the defaults of Google's dp-accounting.
RDP_ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)


@dataclass(frozen=True)
class DP(ParameterObject):
    """Budget of a differentially private fit: ``privacy=DP(epsilon=3, delta=1e-5)``.

    The fitted model reveals hardly more about any one row than if the row had been left out: each
    outcome is at most ``exp(epsilon)`` times as likely with the row as without it, except with a
    probability of `delta`. Gradients of rows are clipped to the norm `clip`, and noise is added to
    their sums, such that all steps of the fit together spend the budget.

    Parameters
    ----------
    epsilon : float
        From about 0.1 (much noise) to 10 (little noise).
    delta : float
        Should be well below 1 divided by the number of rows.
    clip : float, default=1.0
        Largest norm of a row's gradient; longer gradients are scaled down to it. A smaller `clip`
        needs less noise, but shortens more of the gradients.
    seed : int or None, default=None
        Only for tests: gives the same batches and the same noise in each fit. With the seed, the
        noise can be subtracted again, so by default the operating system seeds both, whatever the
        estimator's `random_state`.

    References
    ----------
    M. Abadi et al., "Deep Learning with Differential Privacy", CCS 2016.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from daskml_dist import DP
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> clf = SGDClassifier(privacy=DP(epsilon=3.0, delta=1e-4)).fit(scale(X), y)
    >>> clf.privacy_spent_.epsilon <= 3.0
    True
    """

    epsilon: float
    delta: float
    clip: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, is_valid, expected in (
            ("epsilon", self.epsilon > 0 if _is_number(self.epsilon) else False, "a number > 0"),
            (
                "delta",
                0 < self.delta < 1 if _is_number(self.delta) else False,
                "a number between 0 and 1, well below 1 / number of rows",
            ),
            ("clip", self.clip > 0 if _is_number(self.clip) else False, "a number > 0"),
        ):
            if not is_valid:
                raise InvalidParameterError(f"DP({name}={getattr(self, name)!r}): give {expected}.")
        seed = self.seed
        if seed is not None and (
            isinstance(seed, bool) or not isinstance(seed, Integral) or int(seed) < 0
        ):
            raise InvalidParameterError(
                f"DP(seed={seed!r}): give an integer >= 0 (for tests only), or None."
            )

    def plan(self, n_steps: int, passes: int) -> PrivateSteps:
        """Return the private steps of a fit with `passes` passes of `n_steps` steps each."""
        sampling_rate = 1 / n_steps
        multiplier = find_noise_multiplier(
            float(self.epsilon), float(self.delta), sampling_rate, n_steps * passes
        )
        # 128 bits each, which cannot be guessed.
        batches, noise = (
            (secrets.randbits(128), secrets.randbits(128))
            if self.seed is None
            else (int(self.seed), int(self.seed) + 1)
        )
        return PrivateSteps(
            float(self.clip),
            float(self.delta),
            multiplier,
            sampling_rate,
            batches,
            GaussianNoise(multiplier * float(self.clip), noise),
        )


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite real number."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(float(value))


@dataclass(frozen=True)
class PrivacySpent:
    """Privacy that a fit has spent.

    Parameters
    ----------
    epsilon, delta : float
    noise_multiplier : float
        Standard deviation of the noise in a sum of gradients, divided by `clip`.
    sampling_rate : float
        Probability that a row is in the batch of a step.
    steps : int
    clip : float

    Examples
    --------
    >>> from daskml_dist import DP
    >>> spent = DP(epsilon=1.0, delta=1e-5).plan(n_steps=100, passes=10).spent(500)
    >>> spent.steps, spent.epsilon < 1.0
    (500, True)
    """

    epsilon: float
    delta: float
    noise_multiplier: float
    sampling_rate: float
    steps: int
    clip: float


@dataclass(frozen=True)
class GaussianNoise:
    """Noise that is added to the summed gradients of each step, once for all lanes.

    The noise of a step depends only on the seed and the number of the step, so trainers with
    replicas of the parameters add the same noise, also if a step is repeated after a loss.

    Parameters
    ----------
    std : float
    seed : int

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.privacy import GaussianNoise
    >>> stream = GaussianNoise(std=1.0, seed=0).open(np.zeros((2, 1)))
    >>> stream.draw(step=3).shape
    (2, 1)
    """

    std: float
    seed: int

    def open(self, w: NDArray[Any], first_row: int = 0) -> NoiseStream:
        """Return the noise for rows `w` of the parameters, which begin at row `first_row`."""
        return NoiseStream(self, w.shape, w.dtype, first_row)


#: Largest number of values, and of steps, that are drawn together: seeding a generator takes as
#: long as drawing a thousand values.
_DRAWN_TOGETHER, _STEPS_TOGETHER = 1 << 16, 64


class NoiseStream:
    """Noise of each step for some rows of the parameters; adjacent steps are drawn together.

    Parameters
    ----------
    noise : GaussianNoise
    shape : tuple of int
    dtype : dtype
    first_row : int

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.privacy import GaussianNoise, NoiseStream
    >>> stream = NoiseStream(GaussianNoise(std=1.0, seed=0), (2, 1), np.float32, first_row=0)
    >>> stream.draw(step=1).dtype
    dtype('float32')
    """

    def __init__(
        self, noise: GaussianNoise, shape: tuple[int, ...], dtype: Any, first_row: int
    ) -> None:
        self._noise, self._shape, self._dtype = noise, shape, np.dtype(dtype)
        self._first_row = first_row
        # Depends only on the shape, so that the noise of a step is the same wherever it is drawn.
        size = max(1, math.prod(shape))
        self._together = max(1, min(_STEPS_TOGETHER, _DRAWN_TOGETHER // size))
        self._group, self._drawn_noise = -1, np.empty(0, self._dtype)

    def draw(self, step: int) -> NDArray[Any]:
        """Return the noise of a step (from 1), which must not be changed in place."""
        group, offset = divmod(step, self._together)
        if group != self._group:
            key = np.random.SeedSequence([self._noise.seed, group, self._first_row])
            # Counter-based, as all random streams of rows and steps are.
            random = np.random.Generator(np.random.Philox(key))
            drawn = random.standard_normal((self._together, *self._shape), self._dtype)
            self._group, self._drawn_noise = group, drawn * self._dtype.type(self._noise.std)
        noise: NDArray[Any] = self._drawn_noise[offset]
        return noise


#: The expected number of rows in a batch is a multiple of this fraction: sums of such numbers are
#: exact in any order, so that lanes may move between workers without changing a bit.
_ROW_FRACTION = 2.0**-20


@dataclass(frozen=True)
class PrivateSteps:
    """Private steps of a fit: how rows are drawn, gradients clipped, and noise added.

    Parameters
    ----------
    clip : float
        Largest norm of a row's gradient.
    delta : float
    noise_multiplier : float
        Standard deviation of the noise, divided by `clip`.
    sampling_rate : float
        Probability that a row is in the batch of a step.
    batch_seed : int
        Seed of the batches.
    noise : GaussianNoise

    Examples
    --------
    >>> from daskml_dist import DP
    >>> steps = DP(epsilon=1.0, delta=1e-5, seed=0).plan(n_steps=100, passes=10)
    >>> steps.sampling_rate, steps.expect_rows(250)
    (0.01, 2.5)
    """

    clip: float
    delta: float
    noise_multiplier: float
    sampling_rate: float
    batch_seed: int
    noise: GaussianNoise

    def expect_rows(self, n_rows: int) -> float:
        """Return the mean size of a batch from `n_rows` rows, by which sums are divided.

        The size actually drawn would reveal the number of rows, and must not affect a step.
        """
        return round(n_rows * self.sampling_rate / _ROW_FRACTION) * _ROW_FRACTION

    def spent(self, steps: int) -> PrivacySpent:
        """Return the privacy that a number of steps have spent."""
        rdp = steps * compute_step_rdp(self.sampling_rate, self.noise_multiplier)
        epsilon = compute_epsilon(rdp, self.delta) if steps else 0.0
        return PrivacySpent(
            epsilon, self.delta, self.noise_multiplier, self.sampling_rate, steps, self.clip
        )


@lru_cache(maxsize=256)
def _step_rdp(sampling_rate: float, noise_multiplier: float) -> NDArray[np.float64]:
    """Return :func:`compute_step_rdp` at `RDP_ORDERS`; callers must not write to it."""
    divergences = np.array([_rdp_of_order(sampling_rate, noise_multiplier, a) for a in RDP_ORDERS])
    divergences.flags.writeable = False
    return divergences


def compute_step_rdp(sampling_rate: float, noise_multiplier: float) -> NDArray[np.float64]:
    """Return the Rényi differential privacy of one step, at each of `RDP_ORDERS`.

    For several steps, add the values of the steps.

    Parameters
    ----------
    sampling_rate : float
        From 0 to 1.
    noise_multiplier : float
        Standard deviation of the noise, divided by the largest norm of a row.

    Examples
    --------
    >>> from daskml_dist.privacy import compute_epsilon, compute_step_rdp
    >>> round(compute_epsilon(1000 * compute_step_rdp(0.01, 1.0), delta=1e-5), 3)
    2.101
    """
    return _step_rdp(float(sampling_rate), float(noise_multiplier))


def _rdp_of_order(q: float, sigma: float, order: float) -> float:
    """Return the Rényi divergence of the sampled Gaussian mechanism at one order.

    It is ``log(A) / (order - 1)``, with A the mean of ``(1 - q + q * exp(u(z)))**order`` over z
    from N(0, sigma^2), and ``u(z) = (2 z - 1) / (2 sigma^2)`` (Mironov, Talwar and Zhang 2019,
    section 3.3). The trapezoidal rule converges geometrically for such integrals: the integrand is
    analytic in the strip ``|Im z| < pi * sigma^2``, and falls as a Gaussian.
    """
    if q == 1:
        return order / (2 * sigma**2)
    # Errors of the rule are exp(-2 pi d / h + d^2 / (2 sigma^2)) for a strip of half-width d
    # (Trefethen and Weideman 2014); choose the width h such that this is exp(-45). With much noise
    # the best d, 2 pi sigma^2 / h, lies within the strip; otherwise d is the whole strip.
    strip, width = math.pi * sigma**2, 0.66 * sigma
    if width < 2:
        width = min(width, 2 * math.pi * strip / (45 + strip**2 / (2 * sigma**2)))
    # The mass lies between 0 and the order, which is the mean of the last tilted Gaussian.
    low, high = -12 * sigma, order + 12 * sigma
    z = np.linspace(low, high, math.ceil((high - low) / width) + 1)
    log_density = -0.5 * (z / sigma) ** 2 - math.log(sigma * math.sqrt(2 * math.pi))
    log_density += math.log(z[1] - z[0])
    u = (2 * z - 1) / (2 * sigma**2)
    small = np.minimum(u, 30.0)
    # If exp(u) is small, the ratio is near 1: compute its logarithm without cancellation.
    log_ratio = order * np.where(
        u < 30, np.log1p(q * np.expm1(small)), np.logaddexp(math.log1p(-q), math.log(q) + u)
    )
    terms = log_density + log_ratio
    top = float(terms.max())
    if top > 30:
        log_a = top + math.log(float(np.exp(terms - top).sum()))
    else:
        # A - 1, which is tiny for small q.
        density = np.exp(log_density)
        clipped = np.minimum(log_ratio, 1.0)
        excess = np.where(log_ratio < 1, density * np.expm1(clipped), np.exp(terms) - density)
        log_a = math.log1p(float(excess.sum()))
    return log_a / (order - 1)


def compute_epsilon(rdp: NDArray[np.float64], delta: float) -> float:
    """Return the epsilon of Rényi divergences at `RDP_ORDERS`, for a given delta.

    Parameters
    ----------
    rdp : ndarray of shape (n_orders,)
    delta : float

    Examples
    --------
    >>> from daskml_dist.privacy import compute_epsilon, compute_step_rdp
    >>> compute_epsilon(0 * compute_step_rdp(0.01, 1.0), delta=1e-5)
    0.0
    """
    orders = np.array(RDP_ORDERS)
    # Proposition 12 of Canonne, Kamath and Steinke (2020).
    epsilons = rdp + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    # The divergence of order 1 is at most each of these, and bounds the total variation by sqrt(1 -
    # exp(-rdp)) (Bretagnolle and Huber 1979): if that is below delta, epsilon is 0.
    epsilons = np.where(delta**2 + np.expm1(-rdp) > 0, 0.0, epsilons)
    return max(0.0, float(epsilons.min()))


#: Range of noise multipliers: below the first there is practically no privacy.
_MIN_MULTIPLIER, _MAX_MULTIPLIER = 0.2, 1e7
#: Relative width to which the noise multiplier is bracketed.
_MULTIPLIER_TOLERANCE = 1e-6


@lru_cache(maxsize=256)
def find_noise_multiplier(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """Return the smallest noise multiplier with which `steps` steps spend at most epsilon.

    Parameters
    ----------
    epsilon, delta : float
    sampling_rate : float
    steps : int

    Raises
    ------
    InvalidParameterError
        No noise multiplier is large enough.

    Examples
    --------
    >>> from daskml_dist.privacy import find_noise_multiplier
    >>> round(find_noise_multiplier(1.0, 1e-5, 0.01, 1000), 2)
    1.55
    """

    def spends_too_much(multiplier: float) -> bool:
        rdp = steps * compute_step_rdp(sampling_rate, multiplier)
        return compute_epsilon(rdp, delta) > epsilon

    low = high = 1.0
    while spends_too_much(high):
        low, high = high, 2 * high
        if high > _MAX_MULTIPLIER:
            raise InvalidParameterError(
                f"No noise spends only epsilon={epsilon:g} at delta={delta:g} in {steps} steps. "
                "Ask for a larger epsilon or delta, or for fewer steps: a smaller max_iter."
            )
    if high == 1.0:
        while low > _MIN_MULTIPLIER and not spends_too_much(low / 2):
            low /= 2
        low, high = low / 2, low
        if low < _MIN_MULTIPLIER:
            return high
    # Bisection of the logarithm; the upper end never spends more than the budget.
    while high / low > 1 + _MULTIPLIER_TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spends_too_much(middle) else (low, middle)
    return high
