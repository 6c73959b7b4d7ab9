"""Private steps: the accountant against other ones, the noise's distribution, clipping, batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from scipy import integrate, sparse, stats

from daskml_dist import DP
from daskml_dist.backends import get_backend
from daskml_dist.data.batches import LaneSpec, PoissonRows, Segment
from daskml_dist.errors import InvalidParameterError
from daskml_dist.losses import get_loss
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.models.mlp import MLP
from daskml_dist.privacy import (
    RDP_ORDERS,
    GaussianNoise,
    compute_epsilon,
    compute_step_rdp,
    find_noise_multiplier,
)

# -- the accountant --------------------------------------------------------------------------------

#: Sampling rate, noise multiplier, steps, delta, and the epsilon of dp-accounting 0.6.0's RDP
#: accountant; each is the least at a whole order. At orders between, that release adds up terms of
#: alternating signs as if all were positive, so that its divergences there are too large.
OF_DP_ACCOUNTING: list[tuple[float, float, int, float, float]] = [
    (0.005, 2.0, 4000, 1e-6, 0.7659802598123426),
    (0.1, 3.0, 100, 1e-6, 1.729604329649343),
    (1.0, 30.0, 50, 1e-5, 0.9497375834966014),
    (1e-4, 1.0, 10_000, 1e-7, 0.7241552446548679),
    (0.02, 5.0, 200, 1e-5, 0.21115674107349275),
    (0.256, 12.0, 300, 1e-5, 1.5666723411247503),
]


#: The same of Opacus 1.6.0, at orders between whole ones too.
OF_OPACUS: list[tuple[float, float, int, float, float]] = [
    (0.01, 1.0, 1000, 1e-5, 2.1013652716430564),
    (0.01, 0.8, 500, 1e-5, 2.9790230804413307),
    (0.001, 0.6, 20_000, 1e-5, 3.860441514137926),
    (0.0128, 1.1, 395, 1e-5, 1.5091766024635422),
]


@pytest.mark.parametrize(
    ("rate", "multiplier", "steps", "delta", "epsilon"), OF_DP_ACCOUNTING + OF_OPACUS
)
def test_the_epsilon_is_that_of_other_accountants(
    rate: float, multiplier: float, steps: int, delta: float, epsilon: float
) -> None:
    ours = compute_epsilon(steps * compute_step_rdp(rate, multiplier), delta)
    assert ours == pytest.approx(epsilon, rel=1e-9, abs=1e-9)


def _accounted(rate: float, multiplier: float, steps: int, delta: float, **orders: Any) -> float:
    library = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    accountant = rdp.RdpAccountant(**orders)
    step = library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(multiplier))
    return float(accountant.compose(step, steps).get_epsilon(delta))


@pytest.mark.parametrize("rate", [1.0, 0.1, 0.01, 1e-3])
@pytest.mark.parametrize("multiplier", [0.6, 1.0, 4.0])
def test_the_epsilon_is_that_of_dp_accounting_where_it_is_installed(
    rate: float, multiplier: float
) -> None:
    whole = [order for order in RDP_ORDERS if order == int(order)]
    for steps, delta in ((1, 1e-5), (2000, 1e-6)):
        rdp = steps * compute_step_rdp(rate, multiplier)
        of_whole = np.where(np.isin(RDP_ORDERS, whole), rdp, np.inf)
        theirs = _accounted(rate, multiplier, steps, delta, orders=whole)
        assert compute_epsilon(of_whole, delta) == pytest.approx(theirs, rel=1e-9, abs=1e-9)
        # At all orders theirs is an upper bound.
        assert compute_epsilon(rdp, delta) <= _accounted(rate, multiplier, steps, delta) + 1e-9


@pytest.mark.parametrize(("rate", "multiplier"), [(0.3, 0.5), (0.05, 1.0), (0.2, 3.0)])
@pytest.mark.parametrize("order", [1.1, 1.5, 4.7, 9.9])
def test_divergences_are_those_of_another_quadrature(
    rate: float, multiplier: float, order: float
) -> None:
    """Adaptive, of A - 1."""

    def integrand(z: float) -> float:
        ratio = 1 - rate + rate * np.exp((2 * z - 1) / (2 * multiplier**2))
        return float(stats.norm.pdf(z, scale=multiplier) * (ratio**order - 1))

    bounds = -10 * multiplier, order + 10 * multiplier
    found, _ = integrate.quad(integrand, *bounds, epsabs=0, epsrel=1e-8, limit=500)
    ours = compute_step_rdp(rate, multiplier)[RDP_ORDERS.index(order)]
    assert ours == pytest.approx(np.log1p(found) / (order - 1), rel=1e-6)


def test_full_batches_are_the_plain_gaussian_mechanism() -> None:
    np.testing.assert_allclose(compute_step_rdp(1.0, 2.0), np.array(RDP_ORDERS) / 8)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1000), (1.0, 30), (1e-4, 1)])
def test_the_noise_spends_the_budget_and_no_more(epsilon: float, rate: float, steps: int) -> None:
    multiplier = find_noise_multiplier(epsilon, 1e-5, rate, steps)
    spent = compute_epsilon(steps * compute_step_rdp(rate, multiplier), 1e-5)
    assert spent <= epsilon
    # But for noise that is too little to be of use.
    assert spent > 0.9999 * epsilon or multiplier < 0.4


def test_a_budget_that_no_noise_keeps() -> None:
    with pytest.raises(InvalidParameterError, match="larger epsilon or delta"):
        find_noise_multiplier(1e-9, 1e-300, 1.0, 10_000)


@pytest.mark.parametrize(
    ("bad", "names"),
    [
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": -1}, "epsilon=-1"),
        ({"epsilon": float("inf")}, "epsilon=inf"),
        ({"epsilon": "1"}, "epsilon='1'"),
        ({"epsilon": True}, "epsilon=True"),
        ({"delta": 0.0}, "delta=0.0"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"delta": None}, "delta=None"),
        ({"clip": 0}, "clip=0"),
        ({"clip": float("nan")}, "clip=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 1.5}, "seed=1.5"),
    ],
)
def test_bad_budgets_are_refused(bad: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidParameterError, match=names):
        DP(**({"epsilon": 1.0, "delta": 1e-5} | bad))


# -- noise -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_noise_is_gaussian(dtype: str) -> None:
    stream = GaussianNoise(std=2.5, seed=7).open(np.zeros((50, 3), dtype))
    drawn = np.stack([stream.draw(step) for step in range(1, 401)])
    assert drawn.dtype == dtype
    assert stats.kstest(drawn.ravel() / 2.5, "norm").pvalue > 0.01
    # Neither steps nor parameters depend on each other: sums of n numbers have variance n.
    for axis in (0, 1):
        sums = drawn.sum(axis=axis) / (2.5 * drawn.shape[axis] ** 0.5)
        assert stats.kstest(sums.ravel(), "norm").pvalue > 0.01


def test_the_noise_of_a_step_is_the_same_in_each_process() -> None:
    w = np.zeros((4, 1))
    first, again = (GaussianNoise(1.0, seed=3).open(w) for _ in range(2))
    steps = [first.draw(step).copy() for step in (1, 2, 200, 3)]
    # In another order, as after a loss.
    for at, step in ((3, 3), (2, 200), (1, 2), (0, 1)):
        assert_array_equal(again.draw(step), steps[at])
    assert len({tuple(noise.ravel()) for noise in steps}) == 4
    # Rows of other servers have other noise.
    other = GaussianNoise(1.0, seed=3).open(w, first_row=4)
    assert not np.isin(other.draw(1), steps[0]).any()


def test_seeds_are_of_the_operating_system_unless_given() -> None:
    plans = [DP(1.0, 1e-5).plan(10, 2) for _ in range(2)]
    assert plans[0].noise.seed != plans[1].noise.seed
    assert plans[0].batch_seed != plans[0].noise.seed
    assert plans[0].noise.seed.bit_length() > 64
    assert DP(1.0, 1e-5, seed=0).plan(10, 2) == DP(1.0, 1e-5, seed=0).plan(10, 2)


# -- batches ---------------------------------------------------------------------------------------


def _batches(n_steps: int, passes: int = 1, seed: int = 0) -> list[list[tuple[int, int]]]:
    """The rows of each batch of a lane of two blocks, one of which is cut."""
    lane = LaneSpec(0, (Segment(0, 100, 700), Segment(2, 0, 0), Segment(3, 0, 400)))
    rows = PoissonRows(lane, n_steps, seed)
    return [
        [(block, int(row)) for block, at in batch for row in at]  # type: ignore[union-attr]
        for number in range(1, passes + 1)
        for batch in rows.batches(number)
    ]


def test_each_row_is_in_each_batch_with_the_same_probability() -> None:
    batches = _batches(n_steps=20, passes=100)
    assert len(batches) == 2000
    assert all(len(set(batch)) == len(batch) for batch in batches)
    sizes = np.array([len(batch) for batch in batches])
    # Sizes are binomial, of 1000 rows at 1 / 20.
    edges = np.arange(25, 76, 5)
    observed = np.histogram(sizes, [-1, *edges, 1001])[0]
    cdf = stats.binom.cdf([*(edges - 1), 1000], 1000, 0.05)
    expected = np.diff([0, *cdf]) * len(sizes)
    assert stats.chisquare(observed, expected).pvalue > 0.01
    rows, counts = np.unique(
        [b * 1000 + r for batch in batches for b, r in batch], return_counts=True
    )
    assert len(rows) == 1000
    assert rows.min() == 100
    # Of each row: binomial too. Bounds of five standard deviations.
    assert abs(counts - 100).max() < 5 * (2000 * 0.05 * 0.95) ** 0.5
    # Pairs of rows are drawn independently.
    has = np.zeros((2000, 2), bool)
    for at, batch in enumerate(batches):
        has[at] = (0, 100) in batch, (0, 101) in batch
    both = has.all(axis=1).sum()
    assert abs(both - 5) < 5 * 5**0.5


def test_batches_follow_from_seed_and_pass_alone() -> None:
    assert _batches(10, 2) == _batches(10, 2)
    assert _batches(10, 2)[:10] != _batches(10, 2)[10:]
    assert _batches(10, 1) != _batches(10, 1, seed=1)
    lane = LaneSpec(0, (Segment(0, 0, 500),))
    whole = [at.tolist() for ((_, at),) in PoissonRows(lane, 10, 0).batches(3)]  # type: ignore[union-attr]
    rest = [at.tolist() for ((_, at),) in PoissonRows(lane, 10, 0).batches(3, 7)]  # type: ignore[union-attr]
    assert rest == whole[7:]


def test_batches_without_rows_are_steps_too() -> None:
    lane = LaneSpec(0, (Segment(5, 0, 3),))
    batches = list(PoissonRows(lane, 50, 0).batches(1))
    assert len(batches) == 50
    assert [5] * 50 == [batch[0][0] for batch in batches]
    assert min(len(batch[0][1]) for batch in batches) == 0  # type: ignore[arg-type]


# -- clipping --------------------------------------------------------------------------------------


def _plain_gradient(w: NDArray[Any], X: NDArray[Any], y: NDArray[Any], clip: float) -> Any:
    """The sum of clipped gradients of the log loss, row by row."""
    X1 = np.column_stack([X, np.ones(len(X))])
    slopes = get_loss("log_loss", "classification").gradient(y, (X @ w[:-1] + w[-1])[:, 0])
    bounds = clip / np.sqrt(np.einsum("ij,ij->i", X, X) + 1.0)
    return np.clip(slopes, -bounds, bounds), X1


def _linear_rows(dtype: str = "float64") -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5)) * rng.choice([0.1, 1.0, 10.0], size=(200, 1))
    return X.astype(dtype), rng.choice([-1.0, 1.0], 200).astype(dtype)


def test_clipping_is_the_plain_formula_to_the_bit() -> None:
    X, y = _linear_rows()
    model = LinearModel(get_loss("log_loss", "classification"), 5, 2, True, row_clip=0.7)
    w, out = np.random.default_rng(1).normal(size=(6, 1)), np.zeros((6, 1))
    loss = model.add_gradient(w, BatchRows(X, y, model.bound_slopes(X)), out, get_backend("cpu"))
    slopes, X1 = _plain_gradient(w, X, y, 0.7)
    assert_array_equal(out[:-1, 0], X.T @ slopes)
    assert_array_equal(out[-1], slopes.sum())
    assert loss == 0
    assert (np.linalg.norm(X1 * slopes[:, None], axis=1) <= 0.7 * (1 + 1e-12)).all()


def test_compiled_batches_clip_by_the_same_formula() -> None:
    """Bit for bit for one row; sums of several rows have another order."""
    X, y = _linear_rows()
    model = LinearModel(get_loss("log_loss", "classification"), 5, 2, True, row_clip=0.7)
    bounds, w = model.bound_slopes(X), np.random.default_rng(1).normal(size=(6, 1))
    gather: Any = get_backend("cpu").gather(
        model.loss, (6, 1), {0: (X, y, bounds)}, 200, clips=True
    )
    slopes, X1 = _plain_gradient(w, X, y, 0.7)
    for rows in (np.array([3]), np.arange(200)):
        (add,), out = gather([[(0, rows, None)]]), np.zeros((6, 1))
        assert add(w, out) == 0
        np.testing.assert_allclose(out[:, 0], X1[rows].T @ slopes[rows], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_several_outputs_are_clipped_by_their_whole_norm(kind: str, dtype: str) -> None:
    X, _ = _linear_rows(dtype)
    y = np.random.default_rng(2).integers(0, 3, 200).astype(np.int32)
    model = LinearModel(get_loss("log_loss", "classification"), 5, 3, True, row_clip=0.5)
    w = np.random.default_rng(1).normal(size=(6, 3)).astype(dtype)
    rows: Any = X if kind == "dense" else sparse.csr_matrix(X)
    backend = get_backend("cpu")
    out, each = np.zeros((6, 3), dtype), []
    bounds = model.bound_slopes(rows)
    model.add_gradient(w, BatchRows(backend.to_device(rows), y, bounds), out, backend)
    free = LinearModel(get_loss("log_loss", "classification"), 5, 3, True)
    for i in range(200):
        row_gradient = np.zeros((6, 3))
        free.add_gradient(w, BatchRows(X[i : i + 1], y[i : i + 1]), row_gradient, backend)
        each.append(row_gradient * min(1, 0.5 / max(np.linalg.norm(row_gradient), 1e-300)))
    rtol = 1e-10 if dtype == "float64" else 1e-4
    np.testing.assert_allclose(out, np.sum(each, axis=0), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("activation", ["identity", "logistic", "relu", "tanh"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_rows_of_networks_are_clipped_by_the_norm_over_all_layers(
    activation: str, kind: str
) -> None:
    X, y = _linear_rows()
    free = MLP(get_loss("log_loss", "classification"), (5, 4, 3, 1), activation, 2)
    clipped = MLP(get_loss("log_loss", "classification"), (5, 4, 3, 1), activation, 2, row_clip=0.5)
    w, backend = free.init(0, np.float64) * 3, get_backend("cpu")
    rows: Any = X if kind == "dense" else sparse.csr_matrix(X)
    out, each, norms = np.zeros_like(w), [], []
    assert clipped.add_gradient(w, BatchRows(backend.to_device(rows), y), out, backend) == 0
    for i in range(len(X)):
        row_gradient = np.zeros_like(w)
        free.add_gradient(w, BatchRows(X[i : i + 1], y[i : i + 1]), row_gradient, backend)
        norms.append(np.linalg.norm(row_gradient))
        each.append(row_gradient * min(1, 0.5 / max(norms[-1], 1e-300)))
    assert min(norms) < 0.5 < max(norms)
    np.testing.assert_allclose(out, np.sum(each, axis=0), rtol=1e-9, atol=1e-10)


def test_a_row_of_zeros_without_an_intercept_has_no_bound() -> None:
    model = LinearModel(get_loss("log_loss", "classification"), 2, 2, False, row_clip=1.0)
    bounds = model.bound_slopes(np.array([[0.0, 0.0], [3.0, 4.0]]))
    assert bounds is not None
    assert bounds.tolist() == [np.inf, 0.2]
