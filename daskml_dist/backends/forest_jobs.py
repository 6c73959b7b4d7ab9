"""Compiled loops of the nodes of many trainers: histograms summed elsewhere, and cuts of them.

Importing this module loads numba, so it is imported at first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.array_copies import copy_values
from daskml_dist.backends.compiled import compiled_entry
from daskml_dist.backends.forest_cuts import MISSING, occupied
from daskml_dist.backends.forest_grow import cut_of
from daskml_dist.backends.forest_kernels import add_rows, draw_feature, swap_back

__all__ = ["add_jobs", "best_jobs", "cut_jobs", "features_of"]

_exact = compiled_entry()


@_exact
def features_of(paths: Any, first: Any, last: Any, d: Any, out: Any) -> None:
    """Write the features that nodes draw, of numbers `first` to `last`."""
    features, swaps = np.arange(d), np.zeros(d, np.int64)
    for q in range(len(paths)):
        for k in range(last):
            j = draw_feature(paths[q], k, features, swaps)
            if k >= first:
                out[q, k - first] = j
        for k in range(last - 1, -1, -1):
            swap_back(features, k, swaps)


@_exact
def add_jobs(rows: Any, lines: Any, starts: Any, stops: Any, features: Any, hist: Any) -> None:
    """Add the histograms of some features of each of some nodes to theirs."""
    for q in range(len(features)):
        for k in range(features.shape[1]):
            add_rows(rows, lines[starts[q] : stops[q]], features[q, k], hist[q, k])


@_exact
def best_jobs(told: Any, worths: Any, features: Any, one: Any, out: Any) -> None:
    """Write the feature of each node's best cut (-1: there is none), and what is told of it.

    See `forests.ForestDevice.best`.
    """
    width = told.shape[2]
    for q in range(len(told)):
        out[q, 0] = -1
        best, varies, which = -np.inf, False, -1
        for k in range(told.shape[1]):
            if told[q, k, 2] == 0 or (one and varies):
                continue
            varies = True
            if worths[q, k] > best:
                best, which = worths[q, k], k
        if which >= 0:
            out[q, 0] = features[q, which]
            for v in range(width):
                out[q, 1 + v] = told[q, which, v]
        out[q, 3] = varies


@_exact
def cut_jobs(
    facts: Any, hist: Any, sums: Any, signs: Any, bounds: Any, low: Any, high: Any, paths: Any,
    features: Any, told: Any,
) -> None:  # fmt: skip
    """Write what is told of the best cut of each job.

    Parameters
    ----------
    facts : ndarray of int64 of shape (n, n_facts)
    hist : ndarray of int64 of shape (n, 256, n_sums)
    sums : ndarray of int64 of shape (n, n_sums + 2)
    bounds : ndarray of float64 of shape (n, 3)
    paths : ndarray of uint64 of shape (n,)
    features : ndarray of int64 of shape (n,)
    told : ndarray of int64 of shape (n, forests.TOLD + n_sums + 1)
    """
    n_sums = hist.shape[2]
    places, work = np.zeros(256, np.int64), np.zeros((2, n_sums), np.int64)
    found, left, at = np.zeros(3, np.int64), np.zeros(n_sums + 1, np.int64), np.zeros(1)
    real = np.zeros(2)
    for q in range(len(features)):
        missing, j = facts[q, MISSING], features[q]
        n = occupied(hist[q], missing, places)
        there = False
        for v in range(n_sums):
            there = there or hist[q, missing, v] != 0
        real[0] = -np.inf
        if n + there > 1:
            told[q, 2] = 1
            real[0] = cut_of(
                facts[q], hist[q], places, n, sums[q], signs[j], bounds[q], low, high, paths[q], j,
                -np.inf, found, left, at, work,
            )  # fmt: skip
            real[1] = at[0]
            copy_values(told[q, 3:6], found)
            copy_values(told[q, 6:], left)
        copy_values(told[q, :2], real.view(np.int64))
