"""Compiled loops that take several rows or entries at once, at sizes around their widths.

Where such a loop begins, ends or pads a vector, a tile or an unrolled step wrongly, only some sizes
show it: those just below, at and above a multiple of its width. Each kernel stands here beside its
formula, written down in NumPy in float64, over sizes and dtypes; `TABLES` names the table of every
kernel that has a width, and a test finds those that have none. Sizes are looped over inside a test:
numba compiles a kernel once for each dtype, not for each size.
"""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, sparse
from scipy.special import gammaln, logsumexp, psi

from daskml_dist.backends import (
    batched_log_loss,
    centroid_kernels,
    csr_rows,
    csr_team,
    forest_cuts,
    graph_kernels,
    itemset_kernels,
    mixture_kernels,
    nonnegative_kernels,
    pair_kernels,
    topic_kernels,
    tree_kernels,
    wide_gather,
)
from daskml_dist.backends.base import Step
from daskml_dist.backends.csr_order import Entries
from daskml_dist.backends.csr_rows import CSRRows, TouchedColumns
from daskml_dist.backends.host_memory import Scratch
from daskml_dist.backends.host_update import CoordinateUpdates
from daskml_dist.losses import LogLoss, SquaredError
from daskml_dist.models.batched import BatchedLoss
from daskml_dist.optimizers import SGD
from tests.backends.compiled_loops import compiled_functions, signs_of_a_width

Array = NDArray[Any]

#: Sizes around 8 and 16, the numbers of float64 and of float32 in 64 bytes, and around their
#: multiples; unrolled loops of 2 and 4 rows end there in all ways, too.
SIZES = (1, 7, 8, 9, 15, 16, 17, 31, 33)
dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])


def around(*widths: int) -> tuple[int, ...]:
    """Return the usual sizes, and those just below, at and above some widths."""
    return tuple(sorted({*SIZES, *(n for w in widths for n in (w - 1, w, w + 1))}))


def assert_near(found: Any, expected: Any, dtype: str, case: str, digits: float = 1.0) -> None:
    """Compare with a float64 reference, to the dtype's precision relative to the largest value."""
    rtol = digits * (2e-5 if dtype == "float32" else 1e-12)
    size = float(np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * size, err_msg=case)


# --- topics -----------------------------------------------------------------------------------


def counts_of(rng: Any, lengths: Any, n_words: int, dtype: str) -> Any:
    """Return word counts in CSR form of documents with the given numbers of distinct words."""
    chosen = [np.sort(rng.choice(n_words, n, replace=False)) for n in lengths]
    indptr = np.cumsum([0, *lengths]).astype(np.int32)
    indices = np.concatenate(chosen).astype(np.int32)
    data = rng.integers(1, 5, len(indices)).astype(dtype)
    return sparse.csr_matrix((data, indices, indptr), shape=(len(lengths), n_words))


def log_expectations(gamma: Array) -> Array:
    return np.asarray(psi(gamma) - psi(gamma.sum(axis=1, keepdims=True)))


@dtypes
def test_topics(dtype: str) -> None:
    rng = np.random.default_rng(0)
    X = counts_of(rng, [0, *SIZES], 40, dtype)
    dense, rows, prior, eps = X.toarray().astype(float), np.arange(len(SIZES) + 1), 0.3, 2.0**-52
    csr = X.indptr, X.indices, X.data, rows
    for k in SIZES:
        case = f"{k} topics"
        logs = log_expectations(rng.gamma(2.0, 1.0, (k, 40))).T.copy()
        parameters, found = rng.gamma(2.0, 1.0, (3, k)), np.empty((3, k))
        topic_kernels.write_log_expectations(parameters, found)
        np.testing.assert_allclose(found, log_expectations(parameters), 1e-7, 1e-7, err_msg=case)
        topics, start = np.exp(logs), rng.gamma(100, 0.01, (len(rows), k))
        gamma, shares = start.copy(), np.empty_like(start)
        topic_kernels.fit_documents(*csr, topics, prior, 3, 0.0, gamma, shares)
        expected = start
        for _ in range(3):
            share = np.exp(log_expectations(expected))
            expected = share * (dense / (share @ topics.T + eps) @ topics) + prior
        share = np.exp(log_expectations(expected))
        np.testing.assert_allclose(gamma, expected, rtol=1e-7, err_msg=case)
        np.testing.assert_allclose(shares, share, rtol=1e-6, err_msg=case)
        out = np.ones((40, k))
        topic_kernels.add_word_counts(*csr, topics, shares, out)
        words = (dense / (shares @ topics.T + eps)).T @ shares
        np.testing.assert_allclose(out - 1, words, rtol=1e-9, atol=1e-12, err_msg=case)
        bound = np.empty((len(rows), 2))
        topic_kernels.write_bounds(*csr, logs, prior, gamma, bound)
        theta = log_expectations(gamma)
        terms = (prior - gamma) * theta + gammaln(gamma) - gammaln(prior)
        score = terms.sum(axis=1) + gammaln(prior * k) - gammaln(gamma.sum(axis=1))
        score += (dense * logsumexp(theta[:, None] + logs[None], axis=2)).sum(axis=1)
        expected = np.column_stack([score, dense.sum(axis=1)])
        np.testing.assert_allclose(bound, expected, 1e-7, 1e-9, err_msg=case)


# --- non-negative factors ---------------------------------------------------------------------


@dtypes
def test_nonnegative_factors(dtype: str) -> None:
    rng = np.random.default_rng(1)
    X = counts_of(rng, [0, *SIZES], 40, dtype)
    dense, rows = X.toarray().astype(float), np.arange(len(SIZES) + 1)
    csr, of = (X.indptr, X.indices, X.data, rows), np.dtype(dtype).type
    l1, l2, least = 0.1, 0.2, of(1e-7)
    for k in SIZES:
        case = f"{k} components"
        H = rng.gamma(2.0, 1.0, (40, k)).astype(dtype)
        W = rng.gamma(2.0, 1.0, (len(rows), k)).astype(dtype)
        exact_H, exact, start = H.astype(float), W.astype(float), W.copy()
        for _ in range(2):
            below = exact_H.sum(axis=0) + l1 + l2 * exact
            share = dense / np.maximum(exact @ exact_H.T, least)
            exact = exact * (share @ exact_H) / below
        nonnegative_kernels.multiply_weights(
            *csr, H, H.sum(axis=0), of(l1), of(l2), least, W, 2, 0.0
        )
        assert_near(W, exact, dtype, case)
        share = dense / (start.astype(float) @ exact_H.T)
        factors, out = rng.random(W.shape).astype(dtype), np.ones((40, k))
        nonnegative_kernels.add_component_shares(*csr, H, start, factors, least, out)
        assert_near(out - 1, share.T @ factors.astype(float), dtype, case)
        losses = np.empty(len(rows))
        nonnegative_kernels.write_divergences(*csr, H, start, least, losses)
        expected = np.where(dense > 0, dense * np.log(np.where(dense > 0, share, 1)) - dense, 0)
        assert_near(losses, expected.sum(axis=1), dtype, case, 10)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_nonnegative_least_squares(dtype: str) -> None:
    rng = np.random.default_rng(2)
    for k in SIZES:
        A, targets = rng.normal(size=(2 * k + 3, k)), rng.normal(size=(5, 2 * k + 3))
        gram, products = (A.T @ A).astype(dtype), (targets @ A).astype(dtype)
        W = np.zeros((5, k), dtype)
        nonnegative_kernels.descend_rows(gram, -products, W, 2_000, 1e-9)
        expected = [optimize.nnls(A, target)[0] for target in targets]
        rtol = 1e-3 if dtype == "float32" else 1e-6
        np.testing.assert_allclose(W, expected, rtol, rtol, err_msg=f"{k} coefficients")


# --- itemsets ---------------------------------------------------------------------------------


#: Around words of 64 rows, and the number of rows that a byte can count.
BASKETS = around(64, 128, itemset_kernels._MAX_BYTE_ROWS)


def bits_of(bought: Any, words: int) -> Array:
    """Return the rows as bits, of shape (n_tiles, n_items, n_words)."""
    n_tiles = -(-len(bought) // (64 * words))
    padded = np.zeros((n_tiles * words * 64, bought.shape[1]), np.uint8)
    padded[: len(bought)] = bought
    packed = np.packbits(padded.T.reshape(bought.shape[1], -1, 64), axis=2, bitorder="little")
    whole = np.ascontiguousarray(packed).view(np.uint64)[:, :, 0]
    return np.ascontiguousarray(whole.reshape(-1, n_tiles, words).transpose(1, 0, 2))


def test_items_of_baskets() -> None:
    rng = np.random.default_rng(3)
    for n, m in itertools.product(BASKETS, (1, 9, 17)):
        case, words = f"{n} rows, {m} items", 1 + n % 3
        bought = (rng.random((n, m)) < 0.5).astype(np.uint8)
        bought[:, 0] = 1  # in every row, so that a byte counter would overflow
        found = np.ones(m)
        itemset_kernels.count_items(bought, found)
        np.testing.assert_array_equal(found - 1, bought.sum(axis=0, dtype=int), case)
        # All or only some columns are items, for which there are separate loops.
        for items in {(*range(m),), (*range(0, m, 2),)}:
            bought_items = np.ascontiguousarray(bought[:, list(items)])
            expected = bits_of(bought_items, words)
            packed = np.zeros_like(expected)
            itemset_kernels.pack_rows(bought, np.array(items), 0, packed)
            np.testing.assert_array_equal(packed, expected, case)
            X, rank = sparse.csr_matrix(bought), np.full(m, -1, np.int32)
            rank[list(items)] = np.arange(len(items))
            csr = X.indptr, X.indices, X.data, np.arange(n)
            packed[...] = 0
            itemset_kernels.pack_csr_rows(*csr, rank, packed)
            np.testing.assert_array_equal(packed, expected, case)
            sizes = bought_items.sum(axis=1, dtype=int)
            assert (
                itemset_kernels.count_row_pairs(*csr, rank) == (sizes * (sizes - 1) // 2).sum()
            ), case
            both, (a, b) = bought_items.astype(int).T @ bought_items, np.triu_indices(len(items), 1)
            pairs = np.zeros(len(a))
            itemset_kernels.count_pairs(*csr, rank, 0, len(items), len(items), pairs)
            np.testing.assert_array_equal(pairs, both[a, b], case)
        counted = np.zeros(m)
        itemset_kernels.count_csr_items(*csr, counted)
        np.testing.assert_array_equal(counted, bought.sum(axis=0, dtype=int), case)


def test_supports_of_itemsets() -> None:
    rng = np.random.default_rng(4)
    prefix = np.array([[0, 1, 2], [0, 1, 3], [0, 4, 5], [2, 3, 4]], np.int32)
    bounds, last = np.array([0, 2, 3, 4, 6]), np.array([3, 6, 4, 6, 5, 6], np.int32)
    # Only the few non-zero words of rare items are read.
    for words, share in itertools.product(around(4), (0.02, 0.1, 0.15, 0.4, 0.9)):
        bought = (rng.random((2 * 64 * words - 5, 7)) < share).astype(np.uint8)
        found = np.zeros(len(last))
        itemset_kernels.count_supports(bits_of(bought, words), prefix, bounds, last, found)
        of = np.repeat(np.arange(len(prefix)), np.diff(bounds))
        sets = [[*prefix[p], item] for p, item in zip(of, last, strict=True)]
        expected = [bought[:, each].all(axis=1).sum() for each in sets]
        np.testing.assert_array_equal(found, expected, f"{words} words, {share} of them")


# --- graphs -----------------------------------------------------------------------------------


def test_ranks_and_labels_of_graphs() -> None:
    rng = np.random.default_rng(5)
    degrees = np.array([0, *range(1, 35), 127, 128, 129])
    indptr, n_sources = np.cumsum([0, *degrees]), 200
    indices = rng.integers(0, n_sources, indptr[-1]).astype(np.int32)
    of_row = np.repeat(np.arange(len(degrees)), degrees)
    for n in (*SIZES, len(degrees)):
        m = indptr[n]
        for weighted, several in itertools.product((False, True), repeat=2):
            weights = rng.random(m) if weighted else np.empty(0)
            sent, ranks = rng.random(n_sources), rng.random(n)
            fixed, spread = (rng.random(n if several else 1) for _ in range(2))
            each = sent[indices[:m]] * (weights if weighted else 1)
            sums = np.bincount(of_row[:m], each, minlength=n)
            expected, before = 0.85 * (sums + 0.3 * spread) + fixed, ranks.copy()
            arguments = indptr[: n + 1], indices[:m], weights, sent, fixed, spread, 0.85, 0.3, ranks
            change = graph_kernels.update_ranks(*arguments)
            np.testing.assert_allclose(ranks, expected, rtol=1e-12, err_msg=f"{n} vertices")
            assert change == pytest.approx(np.abs(expected - before).sum(), rel=1e-10)
        labels, theirs = rng.integers(0, 99, n), rng.integers(0, 99, n_sources)
        expected = labels.copy()
        np.minimum.at(expected, of_row[:m], theirs[indices[:m]])
        changed = int((expected < labels).sum())
        found = graph_kernels.update_smallest_labels(indptr[: n + 1], indices[:m], theirs, labels)
        assert found == changed
        np.testing.assert_array_equal(labels, expected, f"{n} vertices")


def test_entries_in_the_order_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    n_rows, n_columns, n = 23, 17, 129
    rows, columns = (rng.integers(0, m, n).astype(np.int32) for m in (n_rows, n_columns))
    values = rng.random(n).astype(np.float32)
    place = rng.permutation(n_columns).astype(np.int32)
    order = np.lexsort((np.arange(n), columns, rows))
    indptr = np.cumsum([0, *np.bincount(rows, minlength=n_rows)])
    uses = np.bincount(columns, minlength=n_columns)
    every_row, every_column = (np.arange(m, dtype=np.int32) for m in (n_rows, n_columns))

    def some() -> list[Entries]:
        ways = every_row, every_column
        cuts = np.array_split(np.arange(n), 3)
        return [Entries(rows[at], columns[at], values[at], *ways) for at in cuts]

    # All entries are sorted together, or those of one row, or of several rows.
    for together in (1, 7, 8, 9, 33, n - 1, n, n + 1):
        monkeypatch.setattr(graph_kernels, "_MAX_SORTED_ENTRIES", together)
        found = graph_kernels.sort_entries(some, indptr, uses, place, np.float32)
        np.testing.assert_array_equal(found[0], place[columns[order]], f"{together} at a time")
        np.testing.assert_array_equal(found[1], values[order], f"{together} at a time")


# --- mixtures and centroids ---------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("whole", [True, False])
def test_expected_moments_of_mixtures(dtype: str, whole: bool) -> None:
    rng, k = np.random.default_rng(7), 3
    for d in SIZES:
        most = min(max(mixture_kernels._CACHED_BYTES // (2 * np.dtype(dtype).itemsize * k * d),
                       mixture_kernels._MIN_TILE_ROWS), mixture_kernels._MAX_TILE_ROWS)  # fmt: skip
        # Tiles of full covariances have this many rows, those of diagonal ones 128.
        for n in (1, 9, 17, *((most - 1, most + 1) if d in (8, 9, 33) else (127, 128, 129))):
            shape = (k, d, d) if whole else (k, d)
            X, shift, constants, means, factors, weight = (
                (scale * rng.normal(size=size)).astype(dtype)
                for scale, size in (
                    (1, (n, d)), (0.1, d), (1, k), (1, (k, d)), (d**-0.5, shape), (1, n)
                )
            )  # fmt: skip
            weight, out = np.abs(weight), np.zeros((k, 1 + d + (d * d if whole else d)))
            found = mixture_kernels.add_expected(X, shift, constants, means, factors, weight, out)
            apart = X.astype(float)[None] - shift - means.astype(float)[:, None]
            scaled = apart @ factors if whole else apart * factors.astype(float)[:, None]
            logs = constants[:, None] - (scaled**2).sum(axis=2) / 2
            total = logsumexp(logs, axis=0)
            shares = np.exp(logs - total) * weight
            seconds = np.einsum("cn,cni,cnj->cij", shares, apart, apart) if whole else (
                shares[..., None] * apart**2).sum(axis=1)  # fmt: skip
            sums = (shares[..., None] * apart).sum(axis=1)
            expected = np.hstack([shares.sum(axis=1)[:, None], sums, seconds.reshape(k, -1)])
            case = f"{n} rows of {d} features"
            assert_near(out, expected, dtype, case, 10)
            assert found == pytest.approx(total @ weight, rel=1e-4), case


@dtypes
def test_nearest_centroids(dtype: str) -> None:
    rng, scratch = np.random.default_rng(8), Scratch()
    few, step = (
        centroid_kernels._MIN_TILE_ROWS,
        centroid_kernels._CACHED_BYTES // np.dtype(dtype).itemsize // 33,
    )
    shapes = [(n, 5, 4) for n in around(few)]
    shapes += [(130, d, 4) for d in SIZES] + [(130, 5, k) for k in SIZES]
    shapes += [(min(step, centroid_kernels._MAX_TILE_ROWS) + more, 33, 3) for more in (-1, 0, 1)]
    for n, d, k in shapes:
        case = f"{n} rows, {d} features, {k} centroids"
        X, shift = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=d).astype(dtype)
        weight, before = rng.random(n).astype(dtype), None
        bounds = np.full((n, centroid_kernels.N_BOUNDS), -1, dtype)
        centroids = rng.normal(size=(k, d)).astype(dtype)
        # Without remembered bounds, and with bounds of earlier centroids.
        for _ in range(2):
            apart = (((X - shift).astype(float)[:, None] - centroids.astype(float)) ** 2).sum(
                axis=2
            )
            member = (apart.argmin(axis=1)[:, None] == np.arange(k)) * weight.astype(float)[:, None]
            sums = np.hstack([member.sum(axis=0)[:, None], member.T @ (X - shift).astype(float)])
            out = np.zeros((k, 1 + d))
            arguments = X, shift, centroids, weight, out, scratch, bounds, before
            inertia = centroid_kernels.add_to_nearest(*arguments)
            assert_near(out, sums, dtype, case)
            assert inertia == pytest.approx(apart.min(axis=1) @ weight, rel=1e-4), case
            np.testing.assert_array_equal(bounds[:, 0], apart.argmin(axis=1), case)
            labels, squares = centroid_kernels.nearest(X, shift, centroids, scratch)
            np.testing.assert_array_equal(labels, apart.argmin(axis=1), case)
            assert_near(squares, apart.min(axis=1), dtype, case)
            before = centroids
            centroids = centroids + (0.1 * rng.normal(size=(k, d))).astype(dtype)


# --- pairs of rows ----------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("biased", [False, True])
def test_products_of_pairs(dtype: str, biased: bool) -> None:
    rng, loss = np.random.default_rng(9), SquaredError()
    for rank, n in itertools.product(SIZES, (1, 8, 33)):
        w = rng.normal(size=(12, rank + biased)).astype(dtype)
        at, y = rng.integers(0, 12, (n, 2)).astype(np.int32), rng.normal(size=n).astype(dtype)
        weight, out, exact = rng.random(n).astype(dtype), np.zeros_like(w), w.astype(float)
        found = pair_kernels.add_pair_gradients(loss, w, at, y, weight, rank, 0.1, 0.3, 0.5, out)
        a, b = exact[at[:, 0]], exact[at[:, 1]]
        raw = (a[:, :rank] * b[:, :rank]).sum(axis=1)
        if biased:
            raw += a[:, rank] + b[:, rank]
            a[:, rank], b[:, rank] = 1, 1
        values, slope = loss.value_and_gradient(y.astype(float), raw * 0.5 + 0.3)
        slope, expected = (slope * weight)[:, None] / 0.5, np.zeros(w.shape)
        reg = np.r_[np.full(rank, 0.1 / 0.5), [0.1] * biased]
        for side, other in ((0, b), (1, a)):
            penalty = reg * weight[:, None] * exact[at[:, side]]
            np.add.at(expected, at[:, side], slope * other + penalty)
        assert_near(out, expected, dtype, f"rank {rank}, {n} pairs", 3)
        assert found == pytest.approx((values * weight).sum(), rel=1e-4)


def test_distinct_numbers() -> None:
    rng = np.random.default_rng(10)
    for n, most in itertools.product((0, *SIZES), (1, 20, 1 << 38)):
        first, second = (rng.integers(0, most, size) for size in (n, (n, 2)))
        index, places = pair_kernels.find_distinct([first, second])
        np.testing.assert_array_equal(index, np.unique(np.append(first, second)))
        for numbers, place in zip((first, second), places, strict=True):
            np.testing.assert_array_equal(index[place], numbers, f"{n} numbers below {most}")


def test_sorted_targets() -> None:
    """Runs of a merge sort double in length, and the last one may be shorter."""
    rng = np.random.default_rng(11)
    for n, n_outputs in itertools.product((0, 2, 3, 4, 5, *around(64, 128)), (1, 2)):
        lines = np.zeros((n, 3 + 2 * n_outputs), np.int64)
        targets = rng.integers(-3, 4, (n, n_outputs)) / 4  # some are equal
        lines[:, 3 + n_outputs :] = targets.view(np.int64)
        for k in range(n_outputs):
            order, rank, values = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n)
            forest_cuts._sort_targets(lines, k, n_outputs, order, rank, values)
            expected = np.argsort(targets[:, k], kind="stable")
            np.testing.assert_array_equal(order, expected, f"{n} lines")
            np.testing.assert_array_equal(rank[expected], np.arange(n))
            np.testing.assert_array_equal(values, targets[expected, k])


# --- sparse rows ------------------------------------------------------------------------------


#: Entries of a row: added in two interleaved sums, and prefetched 64 bytes at a time.
LENGTHS = (0, *around(2, 4))


def sparse_rows(rng: Any, n: int, dtype: str) -> tuple[Any, Array, Array]:
    """Return rows of all lengths, their targets of -1 or +1, and weights."""
    lengths = [LENGTHS[i % len(LENGTHS)] for i in range(n)]
    X = counts_of(rng, lengths, 40, dtype)
    X.data[:] = rng.normal(size=X.nnz)
    return X, rng.choice([-1.0, 1.0], n).astype(dtype), rng.random(n).astype(dtype)


def log_losses(y: Array, raw: Array) -> tuple[Array, Array]:
    """Return the log loss of each raw prediction, and its derivative."""
    return np.logaddexp(0, -y * raw), -y / (1 + np.exp(y * raw))


def log_gradient(X: Any, y: Array, weight: Array, w: Array) -> tuple[float, Array]:
    """Return the summed log loss and its gradient, with the intercept's last."""
    rows = np.column_stack([X.toarray(), np.ones(X.shape[0])]).astype(float)
    values, slope = log_losses(y.astype(float), rows @ w.astype(float))
    return float(values @ weight), rows.T @ (slope * weight)


@dtypes
def test_gradients_of_sparse_rows(dtype: str) -> None:
    rng = np.random.default_rng(11)
    for n in around(8, csr_team._ENTRIES_AHEAD, csr_team._ENDS_AHEAD):
        X, y, weight = sparse_rows(rng, n, dtype)
        w = rng.normal(size=41).astype(dtype)
        at, case = rng.permutation(n), f"{n} rows"
        loss, expected = log_gradient(X[at], y[at], weight[at], w)
        rows, touched = CSRRows(X, at), TouchedColumns()
        columns = touched.find([rows])
        np.testing.assert_array_equal(columns, np.unique(X.indices), case)
        used = [*columns, 40]
        out = np.zeros((len(used), 1), dtype)
        w_used = np.ascontiguousarray(w[used][:, None])
        found = csr_rows.add_csr_gradient(
            "log_loss", rows, touched, y[at], weight[at], w_used, out, ()
        )
        assert found == pytest.approx(loss, rel=1e-5), case
        assert_near(out[:, 0], expected[used], dtype, case, 3)
        # The same rows without gathering, for loops that make whole steps.
        gather = csr_team.CSRGather(LogLoss(), {0: (X, y, weight)}, n)
        index, values = np.empty(64, np.int32), np.empty(64, dtype)
        place = np.full(41, -1, np.int32)
        runs = (at, None), (np.arange(n), np.ones(n, int)), (np.zeros(1, int), np.array([n]))
        for starts, counts in runs:
            parts = gather.locate_segments([[(0, starts, counts)]])
            arguments = (
                gather.where,
                gather.index_like,
                parts,
                0,
                w,
                index,
                values,
                0,
                place,
                (),
                40,
            )
            loss_there, m, _ = gather.gradient(*arguments)
            assert loss_there == pytest.approx(loss, rel=1e-5), case
            assert sorted(index[:m]) == used, case
            assert_near(values[:m], expected[index[:m]], dtype, case, 3)
            assert (place == -1).all()


@dtypes
def test_steps_in_some_rows_of_the_parameters(dtype: str) -> None:
    rng, rate, l2, n_rows = np.random.default_rng(12), 0.1, 0.5, 60
    for n, width in itertools.product(around(16), (1, 3)):
        w = rng.normal(size=(n_rows, width)).astype(dtype)
        row_rate_sums, expected = np.zeros(n_rows), w.astype(float)
        step = Step(w, None, {}, 4.0, rate, 1, 0.0, l2, n_rows - 1)
        updates, rate_sum = CoordinateUpdates(SGD(), step, row_rate_sums), 0.0
        last = np.zeros(n_rows)
        for number in range(1, 4):
            at, rate_sum = np.sort(rng.choice(n_rows, n, replace=False)), rate_sum + rate
            grad = rng.normal(size=(n, width)).astype(dtype)
            updates(at, grad, 4.0, rate, number, rate_sum)
            since = np.where(at < n_rows - 1, number - last[at], 0)[:, None]
            expected[at] -= rate * (grad / 4.0 + l2 * since * expected[at])
            last[at] = number
        assert_near(w, expected, dtype, f"{n} rows of {width}")


# --- many models, losses of boosting -----------------------------------------------------------


@dtypes
def test_gradients_of_many_models(dtype: str) -> None:
    rng = np.random.default_rng(13)
    summed, least, most = (
        batched_log_loss._MAX_ROWS_PER_SUM,
        batched_log_loss._MIN_TILE_ROWS,
        batched_log_loss._MAX_TILE_ROWS,
    )
    # Rows of a tile: 512 of few columns, 64 of very many; 25 interleaved rows of 40 columns.
    shapes = [(n, 3, 5) for n in around(summed, least, most)]
    shapes += [(n, 3, 40) for n in (24, 25, 26, 799, 800, 801)]
    shapes += [(n, 2, 1025) for n in around(least)]
    shapes += [(70, d, 4) for d in SIZES] + [(70, 3, k) for k in SIZES]
    for n, d, k in shapes:
        case = f"{n} rows, {d} features, {k} columns"
        X, w = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(d, k)).astype(dtype)
        bias, signs = rng.normal(size=k).astype(dtype), rng.choice([-1.0, 1.0], n).astype(dtype)
        stops, mask = np.array([k // 3, k]), (rng.random((n, 2)) < 0.6).astype(dtype)
        mask *= 0.5
        exact = X.astype(float) @ w + bias
        weight = np.repeat(mask, np.diff([0, *stops]), axis=1).astype(float)
        values, slope = log_losses(signs[:, None].astype(float), exact)
        losses, gradient = np.ones(k), np.ones((d + 1, k))
        arguments = X, signs, mask, stops, w, bias
        batched_log_loss.add_log_gradients(*arguments, losses, gradient)
        assert_near(losses - 1, (values * weight).sum(axis=0), dtype, case, 3)
        pull = slope * weight
        expected = np.vstack([X.astype(float).T @ pull, pull.sum(axis=0)])
        scale = np.abs(X).max() * np.abs(pull).sum()
        atol = (1e-6 if dtype == "float32" else 1e-14) * scale
        np.testing.assert_allclose(gradient - 1, expected, atol=atol, err_msg=case)
        sums, positive = np.zeros((5, k)), (signs > 0)[:, None]
        batched_log_loss.add_log_scores(*arguments, 2.0, sums)
        right, capped = (exact > 0) == positive, np.minimum(values, 2.0)
        counted = [capped, ~positive, positive, ~positive & right, positive & right]
        assert_near(sums, [(each * weight).sum(axis=0) for each in counted], dtype, case)


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("intercept", [False, True])
def test_gradients_of_wide_models(dtype: str, intercept: bool) -> None:
    rng = np.random.default_rng(15)
    together = wide_gather.TOGETHER
    shapes = [(n, 5, 4) for n in around(together)]
    shapes += [(9, d, 4) for d in SIZES] + [(9, 5, k) for k in (*SIZES, 63, 65)]
    for n, d, k in shapes:
        case, stops = f"{n} rows, {d} features, {k} columns", (k // 3, k)
        X, y = rng.normal(size=(n, d)).astype(dtype), rng.choice([-1.0, 1.0], n)
        mask = rng.integers(0, 3, (n, 2)) / 2
        weight = rng.random(n).astype(dtype)
        blocks = {0: (X, np.column_stack([y, mask]).astype(dtype), weight)}
        w = rng.normal(size=(d + intercept + 1, k)).astype(dtype)
        gather = wide_gather.make_wide_gather(BatchedLoss(LogLoss(), stops, 1), w.shape, blocks, n)
        assert gather is not None
        at, out = rng.permutation(n), np.zeros(w.shape)
        gather.add_gradient([(0, at, None)], w, out)
        rows = np.column_stack([X, np.ones(n)])[:, : d + intercept].astype(float)
        values, slope = log_losses(y[:, None], rows @ w[:-1].astype(float))
        scale = np.repeat(mask * weight[:, None], np.diff([0, *stops]), axis=1)
        assert_near(out[:-1], rows.T @ (slope * scale), dtype, case, 3)
        assert_near(-out[-1], (values * scale).sum(axis=0), dtype, case, 3)


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_of_boosting(weighted: bool) -> None:
    rng = np.random.default_rng(14)
    for n in around(tree_kernels._GRADIENT_TILE_ROWS, 2 * tree_kernels._GRADIENT_TILE_ROWS):
        y, raw = rng.integers(0, 2, n).astype(float), 3 * rng.normal(size=n)
        weight = rng.random(n) if weighted else np.empty(0)
        g, h, largest = np.empty(n, np.float32), np.empty(n, np.float32), np.zeros(2, np.float32)
        tree_kernels.write_binomial_gradients(y, raw, weight, g, h, largest)
        share = 1 / (1 + np.exp(-raw))
        of_row = weight if weighted else 1.0
        np.testing.assert_allclose(g, (share - y) * of_row, 1e-6, 1e-7, err_msg=f"{n} rows")
        np.testing.assert_allclose(h, share * (1 - share) * of_row, 1e-6, 1e-7, err_msg=f"{n} rows")
        np.testing.assert_array_equal(largest, [np.abs(g).max(), h.max()])


# --- which kernel has which table -------------------------------------------------------------


#: Tests of sizes around the width of each kernel, by module and name.
TABLES = {
    "tests.inspection.test_shap_values": {
        "test_rows_around_the_width": "tree_shap: _write_ways add_path_values",
        "test_backgrounds_around_words_of_bits": (
            "tree_shap: _share_leaf add_interventional_values"
        ),
    },
    "tests.backends.test_kernel_tables": {
        "test_topics": (
            "topic_kernels: _digamma _write_log_expectation _longest_document "
            "_write_exp_expectation add_word_counts write_bounds write_log_expectations "
            "fit_documents"
        ),
        "test_nonnegative_factors": (
            "nonnegative_kernels: _floored_product add_component_shares multiply_weights"
        ),
        "test_nonnegative_least_squares": "nonnegative_kernels: descend_rows",
        "test_items_of_baskets": "itemset_kernels: count_items pack_rows pack_csr_rows",
        "test_supports_of_itemsets": "itemset_kernels: count_supports",
        "test_ranks_and_labels_of_graphs": "graph_kernels: update_ranks update_smallest_labels",
        "test_entries_in_the_order_of_rows": "graph_kernels: _sort_by_column _sort_by_row",
        "test_expected_moments_of_mixtures": (
            "mixture_kernels: _shift_to_means _add_diagonal _normalise_shares _scale_and_sum "
            "_compute_shares"
        ),
        "test_nearest_centroids": (
            "centroid_kernels: _add_labelled_rows _shift_rows _copy_chosen_rows _find_two_nearest "
            "_measure_distances _find_nearest_exactly _screen_rows _settle_close_calls"
        ),
        "test_products_of_pairs": "pair_kernels: _add_pair_gradients _multiply_factors",
        "test_sorted_targets": "forest_cuts: _sort_targets",
        "test_distinct_numbers": "pair_kernels: _number_distinct",
        "test_gradients_of_sparse_rows": (
            "csr_team: _add_block_gradient; csr_kernels: _add_row_gradients find_new_columns"
        ),
        "test_steps_in_some_rows_of_the_parameters": "host_update: update_at",
        "test_gradients_of_many_models": "batched_log_loss: add_log_gradients add_log_scores",
        "test_gradients_of_wide_models": (
            "wide_gather: _write_products _write_gradient _copy_batch_rows"
        ),
        "test_gradients_of_boosting": "tree_kernels: write_binomial_gradients",
    },
    "tests.backends.test_ranking_kernels": {
        "test_gains_of_the_order_of_scores": "ranking_kernels: _sort_query sum_ranked_gains",
        "test_gradients_of_pairs": "ranking_kernels: make_pair_gradients",
    },
    "tests.backends.test_tree_tables": {
        "test_boosting_at_numbers_of_rows_and_leaves_around_widths": (
            "tree_predict: add_tree_values _fill_mask_tables _rule_out_leaves add_by_masks"
        ),
        "test_forests_at_numbers_of_rows_around_widths": (
            "tree_predict: _descend_rows add_forest_answers"
        ),
        "test_out_of_bag_predictions": "forest_kernels: add_out_of_bag_answers",
        "test_partition_of_the_rows_of_a_node": (
            "forest_grow: _add_few_rows _find_split; forest_kernels: add_any_line add_node_sums"
        ),
        "test_rows_sampled_by_a_tree": "forest_kernels: draw_tree_rows",
        "test_medians": "forest_cuts: write_node_medians",
        "test_categories_around_whole_words": "tree_kernels: _find_best_categories",
    },
    "tests.backends.test_tree_kernels": {
        "test_histograms_at_sizes_around_unrolled_loops": (
            "tree_kernels: _add_packed_rows _add_row_pairs _add_chosen_rows _add_chosen_pairs "
            "sum_chosen_rows"
        ),
        "test_packed_sums_do_not_overflow": "tree_kernels: sum_all_rows",
    },
    "tests.backends.test_vector_tree_kernels": {
        "test_histograms_of_all_sizes": "vector_tree_kernels: _add_vectors",
        "test_categories_around_whole_words": (
            "vector_tree_kernels: _find_best_vector_categories"
        ),
        "test_predictions_of_all_numbers_of_rows": "vector_tree_kernels: add_vector_values",
    },
    "tests.backends.test_dense_kernels": {
        "test_rows_of_any_width_and_number": (
            "dense_kernels: _add_log_loss_gradient _add_group_gradient _copy_padded "
            "_write_log_losses _multiply_group _sum_numbers _multiply_weights"
        ),
    },
    "tests.backends.test_unaligned": {
        "test_curvature_kernel_equals_gradient_and_hessian": (
            "dense_kernels: _write_curvature_roots"
        ),
    },
    "tests.backends.test_binning": {
        "test_both_ways_give_the_same_bins": "tree_predict: _grid_cell _write_bins",
    },
    "tests.backends.test_exponential": {
        "test_few_numbers_have_the_bits_of_many": "elementary_functions: exponentiate_in_place",
    },
    "tests.backends.test_host_gather": {
        "test_gradients_at_sizes_around_unrolled_loops": (
            "host_gather: _set_batch_gradient _add_tile_gradient"
        ),
    },
    "tests.backends.test_row_steps": {
        "test_row_lengths_around_unrolled_loops": "row_steps: _step_along_rows",
    },
    "tests.maths.test_embeddings": {
        "test_rows_of_all_ranks_around_whole_vectors": (
            "embedding_kernels: add_pooled_gradients add_row_gradients pool_fields predict_rows"
        ),
        "test_field_pairs_of_all_ranks_around_whole_vectors": (
            "embedding_kernels: add_field_pair_gradients predict_field_pairs"
        ),
    },
    "tests.ps.test_row_store": {
        "test_batch_sizes_around_the_prefetch_distance": (
            "row_store_kernels: _fetch_place _fetch_row collect_entries count_sightings draw_rows "
            "find_slots gather_rows insert_ids remove_ids scatter_rows"
        ),
    },
    "tests.solvers.test_als": {
        "test_systems_of_all_widths_around_whole_vectors": (
            "als_kernels: _add_outer_products _add_scaled_rows _add_shared_product "
            "_mirror_triangle _substitute_back _vector_entries conjugate_gradient_rows solve_rows "
            "solve_system"
        ),
        "test_rows_of_all_lengths_around_chunks": (
            "als_kernels: _add_rating_products _rating_terms add_ratings"
        ),
        "test_small_penalties_keep_float32_precision": "als_kernels: _estimate_inverse_size",
        "test_errors_of_all_widths_around_whole_vectors": "als_kernels: add_row_errors",
    },
}  # fmt: skip
#: Signs that look like a width but are none.
NO_WIDTH = {
    "forest_grow.grow_tree": "a stack of nodes, which grows by two",
    "team_steps.await_others": "looks at a flag before the clock is read",
    "tree_shap.describe_edges": "a stack of nodes, which grows by two",
    "tree_shap._goes_left": "looks a category up in its words of 64 bits",
}


def in_tables() -> dict[str, tuple[str, str]]:
    """Return the module and the name of the test of each kernel in `TABLES`."""
    found = {}
    for module, tests in TABLES.items():
        for test, entries in tests.items():
            for part in entries.split(";"):
                kernels, names = part.split(":")
                found |= {f"{kernels.strip()}.{name}": (module, test) for name in names.split()}
    return found


def test_each_kernel_with_a_width_has_a_table() -> None:
    functions, tables = compiled_functions(), in_tables()
    assert len(functions) > 200
    assert tables.keys() <= functions.keys()
    signs = {
        name: ["sums in any order"] if reordered else signs_of_a_width(function)
        for name, (function, reordered) in functions.items()
    }
    wide = {name for name, found in signs.items() if found}
    missing = {name: signs[name] for name in wide - tables.keys() - NO_WIDTH.keys()}
    assert missing == {}, (
        "These take several rows or entries at once: write a test over sizes around their widths, "
        "in both dtypes, beside NumPy, and name it in TABLES."
    )
    assert wide >= NO_WIDTH.keys()
    root = Path(__file__).resolve().parents[2]
    for module in TABLES:
        whole = ast.parse(root.joinpath(*module.split(".")).with_suffix(".py").read_text())
        test_names = {node.name for node in whole.body if isinstance(node, ast.FunctionDef)}
        assert TABLES[module].keys() <= test_names, f"{module} has no such test"


def _plain(n: int) -> int:
    return n + 1


def _in_fours(n: int) -> int:
    for i in range(0, n, 4):
        n += i
    return n


def _with_a_rest(n: int) -> int:
    return n % 2


def _counted(n: int) -> int:
    k = 0
    while k < n:
        k += 2
    return k


def _in_words(b: int) -> int:
    return b >> 6


def _tiled(n: int) -> int:
    return min(n, csr_team._ENTRIES_AHEAD) + min(n, _SIX)


_SIX = 6


@pytest.mark.parametrize(
    ("function", "signs"),
    [(_plain, 0), (_in_fours, 1), (_with_a_rest, 1), (_counted, 1), (_in_words, 1), (_tiled, 1)],
)
def test_signs_of_a_width_are_recognised(function: Any, signs: int) -> None:
    assert len(signs_of_a_width(function)) == signs
