"""Code blocks of the pages on extending the package run as in a notebook."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn.cluster
from distributed import Client

from daskml_dist.parameters.checks import seed_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
N_ROWS = 1_000


def _blocks(page: str) -> dict[str, list[str]]:
    """Return the Python blocks by their heading."""
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    found = {
        name: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for name, text in sections.items()
    }
    return {name: blocks for name, blocks in found.items() if blocks}


BLOCKS = {
    name: blocks
    for page in sorted(DOCS.glob("extending*.md"))
    for name, blocks in _blocks(page.read_text(encoding="utf-8")).items()
}


def _regression(rng: Any) -> tuple[Any, Any]:
    X = rng.normal(size=(N_ROWS, 6))
    return X, X @ np.full(6, 0.5) + 0.1 * rng.normal(size=N_ROWS)


def _classes(rng: Any) -> tuple[Any, Any]:
    X = rng.normal(size=(N_ROWS, 6))
    return X, X[:, 0] + 0.3 * rng.normal(size=N_ROWS) > 0


def _fits(names: dict[str, Any], name: str, least: float) -> None:
    """Assert that the named model is accurate and was fitted by both workers."""
    model = names[name]
    assert model.score(names["X"], names["y"]) > least
    assert model.history_.extra["n_lanes"] == 2


def _loss(names: dict[str, Any]) -> None:
    _fits(names, "model", 0.9)
    loss = names["LogCosh"](scale=0.5)
    rng = np.random.default_rng(1)
    for shape in [(50,), (50, 3)]:
        y, raw = rng.normal(scale=3, size=(2, *shape))
        values, gradient = loss.value_and_gradient(y, raw)
        assert values.shape == (50,)
        up, down = (loss.value_and_gradient(y, raw + h)[0] for h in (1e-6, -1e-6))
        slope = gradient if raw.ndim == 1 else gradient.sum(axis=1)
        np.testing.assert_allclose((up - down) / 2e-6, slope, rtol=1e-6, atol=1e-8)
    y, raw = y[:, 0], raw[:, 0]
    rows = [loss.evaluate_row(*row, loss.parameters) for row in zip(y, raw, strict=True)]
    np.testing.assert_allclose(np.transpose(rows), loss.value_and_gradient(y, raw), rtol=1e-12)


def _optimizer(names: dict[str, Any]) -> None:
    _fits(names, "clf", 0.9)
    rng = np.random.default_rng(1)
    w, optimizer = rng.normal(size=8), names["RMSProp"]()
    opt_state, expected, square = optimizer.init(w), w.copy(), np.zeros(8)
    for step in range(1, 6):
        grad = rng.normal(size=8)
        optimizer.update(w, grad.copy(), opt_state, 0.1, step)
        square = 0.9 * square + 0.1 * grad**2
        expected -= 0.1 * grad / (np.sqrt(square) + 1e-8)
    np.testing.assert_allclose(w, expected, rtol=1e-12)


def _curve(rng: Any) -> tuple[Any, Any]:
    X = rng.normal(size=(N_ROWS, 6))
    return X, np.sin(2 * X[:, 0]) + X[:, 1]


def _steps(names: dict[str, Any]) -> None:
    _fits(names, "model", 0.9)
    assert names["predicted"].shape == (N_ROWS,)


def _images(rng: Any) -> tuple[Any, Any]:
    X = rng.integers(256, size=(N_ROWS, 8, 8), dtype=np.uint8)
    return X, X[:, :4].mean(axis=(1, 2)) / 255 - X[:, 4:].mean(axis=(1, 2)) / 255


def _shapes(names: dict[str, Any]) -> None:
    _fits(names, "model", 0.9)
    assert (names["X"].dtype, names["model"].row_shape_) == ("uint8", (8, 8))
    assert names["predicted"].shape == (N_ROWS,)


def _values(rng: Any) -> tuple[Any, Any]:
    """Return indices of values in three columns, half of which are rare."""
    X = np.concatenate(
        [rng.integers(0, 12, (N_ROWS, 1)) + first for first in (0, 1990, 3988)], axis=1
    )
    factors, weights = rng.normal(scale=0.5, size=(4000, 2)), rng.normal(size=4000)
    return X, weights[X].sum(axis=1) + (factors[X[:, 0]] * factors[X[:, 1]]).sum(axis=1)


def _few(names: dict[str, Any]) -> None:
    _fits(names, "model", 0.9)
    model, X = names["model"], names["X"].compute()
    assert names["predicted"].shape == (N_ROWS,)
    fresh = model.model_.init(seed_of(0), model.w_.dtype)
    untouched = np.setdiff1d(np.arange(4000), X)
    assert len(untouched) > 3900
    np.testing.assert_array_equal(model.w_[untouched], fresh[untouched])
    moved = model.history_.records[-1]["bytes_pushed"]
    assert moved < 0.05 * model.w_.nbytes * model.history_.records[-1]["steps"]


def _clusters(rng: Any) -> tuple[Any, None]:
    return rng.normal(size=(N_ROWS, 6)) + rng.normal(scale=2, size=(3, 6))[
        rng.integers(3, size=N_ROWS)
    ], None


def _rounds(names: dict[str, Any]) -> None:
    model, X = names["model"], names["X"].compute()
    peer = sklearn.cluster.KMeans(3, init=X[:3], n_init=1, tol=0).fit(X)
    np.testing.assert_allclose(model.cluster_centers_, peer.cluster_centers_, rtol=1e-6)
    np.testing.assert_array_equal(names["labels"], peer.labels_)
    assert model.n_iter_ == len(model.history_.records) > 3


#: Rows given to a section's block, and the check to run afterwards.
SECTIONS: dict[str, tuple[Callable[[Any], tuple[Any, Any]], Callable[[dict[str, Any]], None]]] = {
    "A loss": (_regression, _loss),
    "An optimizer": (_classes, _optimizer),
    "A model": (_curve, _steps),
    "A model that touches few rows": (_values, _few),
    "Rows of any shape": (_images, _shapes),
    "A statistic, its solver and its estimator": (_clusters, _rounds),
}


def test_every_section_with_code_is_run() -> None:
    assert {name: len(blocks) for name, blocks in BLOCKS.items()} == dict.fromkeys(SECTIONS, 1)


@pytest.mark.parametrize("section", SECTIONS)
def test_block_of_the_page(section: str, client: Client) -> None:
    draw, check = SECTIONS[section]
    X, y = draw(np.random.default_rng(0))
    names: dict[str, Any] = {
        "__name__": "__main__",
        "X": da.from_array(X, chunks=(N_ROWS // 4, *X.shape[1:])),
        "y": None if y is None else da.from_array(y, chunks=N_ROWS // 4),
    }
    exec(BLOCKS[section][0], names)
    check(names)
