"""Multi-layer perceptrons compared with finite differences, PyTorch, SciPy and scikit-learn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn import neural_network as theirs
from sklearn.datasets import load_digits

from daskml_dist import neural_network as ours
from daskml_dist.backends import Backend, get_backend
from daskml_dist.backends.numpy_backend import add_matmul
from daskml_dist.losses import LogLoss, Poisson, SquaredError
from daskml_dist.models.base import BatchRows
from daskml_dist.models.mlp import ACTIVATIONS, MLP
from tests.strict_backend import StrictBackend

N_ROWS, SIZES = 11, (4, 5, 6)
CPU = get_backend("cpu")
#: Loss, outputs, classes, and whether targets have columns.
HEADS: dict[str, tuple[Any, int, int, bool]] = {
    "two classes": (LogLoss(), 1, 2, False),
    "classes": (LogLoss(), 3, 3, False),
    "labels": (LogLoss(), 3, 3, True),
    "number": (SquaredError(), 1, 0, False),
    "numbers": (SquaredError(), 2, 0, True),
    "count": (Poisson(), 1, 0, False),
}
every_network = pytest.mark.parametrize("head", HEADS)
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def make_network(
    head: str, activation: str = "tanh", dtype: Any = np.float64
) -> tuple[MLP, Any, BatchRows]:
    """A model, parameters and rows."""
    loss, n_outputs, n_classes, several = HEADS[head]
    model = MLP(loss, (*SIZES, n_outputs), activation, n_classes, several)
    rng = np.random.default_rng(1)
    shape = (N_ROWS, n_outputs) if several else (N_ROWS,)
    y = rng.integers(2 if several else n_classes, size=shape) if n_classes else rng.random(shape)
    y = model.encode(y, np.arange(n_classes) if n_classes else None, dtype)
    X, weight = rng.normal(size=(N_ROWS, SIZES[0])), rng.random(N_ROWS)
    return model, model.init(0, dtype), BatchRows(X.astype(dtype), y, weight.astype(dtype))


def gradient_of(model: MLP, w: Any, rows: BatchRows, backend: Backend = CPU) -> tuple[float, Any]:
    out = backend.to_device(np.zeros(w.shape, backend.to_numpy(w).dtype))
    loss = model.add_gradient(w, rows, out, backend)
    return float(loss), backend.to_numpy(out)


@every_network
@every_activation
def test_gradient_equals_finite_differences(head: str, activation: str) -> None:
    model, w, rows = make_network(head, activation)

    def loss(at: int, by: float) -> float:
        moved = w.copy()
        moved[at] += by
        return gradient_of(model, moved, rows)[0]

    slopes = [(loss(i, 1e-6) - loss(i, -1e-6)) / 2e-6 for i in range(len(w))]
    np.testing.assert_allclose(gradient_of(model, w, rows)[1][:, 0], slopes, atol=1e-7)


@every_network
@every_activation
def test_gradient_equals_torch(head: str, activation: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    model, w, rows = make_network(head, activation)
    leaf = torch.tensor(w[:, 0], requires_grad=True)
    x = torch.tensor(rows.X)
    apply = {"identity": lambda z: z, "logistic": torch.sigmoid}.get(activation)
    apply = apply or getattr(torch, activation)
    for layer in range(len(model.layers)):
        weights, shift = (model.parameters.rows[name] for name in model.layers[layer])
        shape = model.sizes[layer], model.sizes[layer + 1]
        x = x @ leaf[weights].reshape(shape) + leaf[shift]
        x = apply(x) if layer < len(model.layers) - 1 else x
    y = torch.tensor(rows.y)
    losses = {
        "two classes": lambda: torch.nn.functional.softplus(-y * x[:, 0]),
        "classes": lambda: torch.nn.functional.cross_entropy(x, y.long(), reduction="none"),
        "labels": lambda: torch.nn.functional.softplus(-y * x).sum(dim=1),
        "number": lambda: (x[:, 0] - y) ** 2 / 2,
        "numbers": lambda: ((x - y) ** 2 / 2).sum(dim=1),
        "count": lambda: x[:, 0].exp() - y * x[:, 0],
    }[head]()
    (losses * torch.tensor(rows.weight)).sum().backward()
    found = gradient_of(model, w, rows)[1][:, 0]
    np.testing.assert_allclose(found, leaf.grad.numpy(), rtol=1e-12, atol=1e-13)


@every_network
@every_activation
def test_another_array_library_gives_the_same(head: str, activation: str) -> None:
    model, w, rows = make_network(head, activation)
    backend = StrictBackend()
    device_rows = BatchRows(*(backend.to_device(array) for array in (rows.X, rows.y, rows.weight)))
    loss, gradient = gradient_of(model, w, rows)
    away_loss, away = gradient_of(model, backend.to_device(w), device_rows, backend)
    assert away_loss == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(away, gradient, rtol=1e-12, atol=1e-14)
    sums = model.validation_sums(w, rows, CPU)
    np.testing.assert_allclose(
        model.validation_sums(backend.to_device(w), device_rows, backend), sums, rtol=1e-12
    )


def test_pipeline_stages_give_the_same_bits() -> None:
    model, w, rows = make_network("classes", "relu")
    loss, gradient = gradient_of(model, w, rows)
    out, stages = np.zeros_like(w), [range(0, 1), range(1, 3)]
    x, memories = rows.X, []
    for layers in stages:
        x, memory = model.forward(w[model.rows_of(layers)], x, layers, rows, CPU)
        memories.append(memory)
    found, slope = model.loss_gradient(x, rows, CPU)
    for layers, memory in zip(stages[::-1], memories[::-1], strict=True):
        at = model.rows_of(layers)
        slope = model.backward(
            w[at], memory, slope, out[at], layers, rows, CPU, wants_input=layers.start > 0
        )
    assert found == loss
    np.testing.assert_array_equal(out, gradient)


def test_many_rows_are_processed_in_parts() -> None:
    model, w, rows = make_network("classes")
    often = 150
    y, weight = (np.tile(array, often) for array in (rows.y, rows.weight))
    many = BatchRows(np.tile(rows.X, (often, 1)), y, weight)
    loss, gradient = gradient_of(model, w, rows)
    total, sums = gradient_of(model, w, many)
    assert total == pytest.approx(often * loss, rel=1e-12)
    np.testing.assert_allclose(sums, often * gradient, rtol=1e-10, atol=1e-12)
    wide = np.zeros(w.shape, np.float64)
    single, w32, rows32 = make_network("classes", dtype=np.float32)
    single.add_gradient(w32, rows32, wide, CPU)  # sums of float32 rows in float64
    np.testing.assert_allclose(wide, gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_are_added_in_place_whatever_their_order(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(dtype) for shape in [(3, 4), (4, 5)])
    start = rng.normal(size=(3, 5)).astype(dtype)
    expected = start + a @ b
    for left in (a, np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2], a.astype(np.float64)):
        for right in (b, np.asfortranarray(b)):
            out = start.copy()
            add_matmul(left, right, out)
            np.testing.assert_allclose(out, expected, rtol=1e-5)
    strided = np.zeros((3, 10), dtype)
    strided[:, ::2] = start
    add_matmul(a, b, strided[:, ::2])  # BLAS would copy this layout
    np.testing.assert_allclose(strided[:, ::2], expected, rtol=1e-5)


@pytest.mark.parametrize("head", ["classes", "number"])
def test_lbfgs_equals_scipy(head: str) -> None:
    model, start, rows = make_network(head)
    rows = BatchRows(rows.X, rows.y)
    alpha, penalised = 0.1, np.zeros(start.shape, bool)
    for part in model.parameters.parts:
        penalised[model.parameters.rows[part.name]] = part.penalised

    def objective(flat: Any) -> tuple[float, Any]:
        w = flat[:, None]
        loss, gradient = gradient_of(model, w, rows)
        pull = alpha * penalised * w
        return (loss + (pull * w).sum() / 2) / N_ROWS, ((gradient + pull) / N_ROWS).ravel()

    options = {"gtol": 1e-9, "ftol": 64 * np.finfo(float).eps, "maxiter": 2_000, "maxls": 50}
    found = minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options)
    kind = ours.MLPClassifier if head == "classes" else ours.MLPRegressor
    fitted = kind(
        hidden_layer_sizes=SIZES[1:],
        activation="tanh",
        solver="lbfgs",
        alpha=alpha,
        tol=1e-9,
        max_iter=2_000,
        random_state=0,
    ).fit(rows.X, rows.y)
    assert fitted.loss_ == pytest.approx(found.fun, rel=1e-9)
    outputs = model.raw(found.x[:, None], rows.X, CPU)
    if head == "classes":
        np.testing.assert_array_equal(fitted.predict(rows.X), outputs.argmax(axis=1))
    else:
        np.testing.assert_allclose(fitted.predict(rows.X), outputs, atol=1e-4)


def test_fits_equal_scikit_learn() -> None:
    """Same initial weights; then L-BFGS, and full batches of Adam and of Nesterov's momentum."""
    X, y = load_digits(return_X_y=True)
    X = X[:300] / 16
    for params in (
        {"solver": "lbfgs", "max_iter": 20},
        # scikit-learn adds epsilon to the root without bias correction.
        {"batch_size": 300, "max_iter": 20, "shuffle": False, "alpha": 0.0, "epsilon": 1e-12},
        {"solver": "sgd", "batch_size": 300, "max_iter": 20, "shuffle": False, "alpha": 1.0},
    ):
        fits = [module.MLPClassifier((20,), random_state=3, **params) for module in (ours, theirs)]
        with pytest.warns(UserWarning, match=r"converge|settled"):
            one, other = (fit.fit(X, y[:300]) for fit in fits)
        for name in ("coefs_", "intercepts_"):
            for a, b in zip(getattr(one, name), getattr(other, name), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5)


def test_identity_distinguishes_models() -> None:
    model = make_network("classes")[0]
    others = [
        replace(model, activation="relu"),
        replace(model, sizes=(4, 5, 7, 3)),
        replace(model, is_multi_output=True),
        replace(model, loss=SquaredError()),
    ]
    assert all(other.identity() != model.identity() for other in others)
