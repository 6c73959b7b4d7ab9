"""Answers of trees to rows that lie on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.backends import kernels
from daskml_dist.backends.cupy_calls import Calls
from daskml_dist.backends.row_slices import row_slices

__all__ = ["CupyForest", "packed_nodes"]

Array = NDArray[Any]

#: Entries of sparse rows that are made dense at once.
_ENTRIES = 1 << 24
#: A node, as tree_predict.cu has it, and its flags.
_NODE = np.dtype([("threshold", np.float64), ("left", np.int32), ("feature", np.int32)])
_MISSING_LEFT, _CATEGORY = 1, 2


class CupyForest:
    """Trees on a GPU, as a function from rows there to the sums of their answers.

    Parameters
    ----------
    backend : CupyBackend
    trees : models.trees.Trees
    start : ndarray of float64 of shape (n_outputs,)
        What answers are added to. Where trees answer one number each and there are several
        outputs, they belong to these in turn.
    """

    def __init__(self, backend: Any, trees: Any, start: NDArray[np.float64]) -> None:
        self._backend, self._start = backend, start
        self._calls = _PredictCalls(backend.calls.cupy, backend.calls.address)
        arrays = (
            trees.roots[:-1], packed_nodes(trees.nodes), _or_one(trees.nodes.bitsets),
            *_categories(trees.bins), np.ascontiguousarray(trees.nodes.value),
        )  # fmt: skip
        self._arrays = [backend.to_device(array) for array in arrays]
        self._n_features = trees.bins.n_features

    def __call__(self, X: Any) -> NDArray[np.float64]:
        """The sums, of shape (n, n_outputs), in host memory; sparse rows become dense in parts."""
        cp, n = self._calls.cupy, X.shape[0]
        out = cp.empty((n, len(self._start)), np.float64)
        out[...] = self._backend.to_device(self._start)
        if hasattr(X, "tocsr"):
            for at in row_slices(n, max(1, _ENTRIES // max(self._n_features, 1))):
                self._calls.predict(cp.ascontiguousarray(X[at].toarray()), self._arrays, out[at])
        else:
            self._calls.predict(cp.ascontiguousarray(X), self._arrays, out)
        found: NDArray[np.float64] = self._backend.to_numpy(out)
        return found


def packed_nodes(nodes: Any) -> NDArray[np.float64]:
    """Nodes of 16 bytes each, as two numbers whose bits are what the kernel reads."""
    packed = np.empty(len(nodes.feature), _NODE)
    packed["threshold"], packed["left"] = nodes.threshold, nodes.left
    of_category = nodes.category >= 0
    packed["threshold"][of_category] = nodes.category[of_category].astype(np.int64).view(np.float64)
    flags = nodes.missing_left * _MISSING_LEFT + of_category * _CATEGORY
    packed["feature"] = np.where(nodes.feature < 0, -1, nodes.feature * 4 + flags)
    return packed.view(np.float64)


def _categories(bins: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Categories of all features behind each other, and where each feature's begin."""
    some = [e if c else e[:0] for e, c in zip(bins.edges, bins.categorical, strict=True)]
    firsts = np.cumsum([0, *map(len, some)])
    return _or_one(np.concatenate([np.empty(0), *some])), firsts.astype(np.int64)


def _or_one(array: Array) -> Array:
    """The array, or one zero where it is empty: a device has no arrays of nothing."""
    return array if array.size else np.zeros(1, array.dtype)


class _PredictCalls(Calls):
    """Calls of the kernel of predictions."""

    def predict(self, X: Any, arrays: list[Any], out: Any) -> None:
        (n, d), (roots, *_, values) = X.shape, arrays
        at = kernels.launch("tree_predict", n, d, X.dtype, self._n_sms)
        self._call(
            "tree_predict", X.dtype, "tree_predict", at, X, *arrays, out, n, d, len(roots),
            values.shape[1], out.shape[1],
        )()  # fmt: skip
