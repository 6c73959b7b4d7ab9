"""Compiled steps of latent Dirichlet allocation on rows of CSR blocks, without copies of rows.

Importing this module loads numba, so it is imported at first use.

References
----------
M. D. Hoffman, D. M. Blei and F. Bach, "Online learning for latent Dirichlet allocation", NIPS 2010.
J. Bernardo, "Algorithm AS 103: psi (digamma) function", Applied Statistics 25(3), 1976.
G. Marsaglia and W. W. Tsang, "A simple method for generating gamma variables", ACM Transactions on
Mathematical Software 26(3), 2000.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry, compiled_inside

_fast = compiled_entry(fastmath={"contract", "reassoc", "nsz"})
_exact = compiled_entry()
_inside = compiled_inside(error_model="numpy")
_inside_fast = compiled_inside(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})

#: Keeps the mean over a word's topics above 0.
_MIN_MEAN = float(np.finfo(np.float64).eps)
#: Shape of the gamma distribution of documents' initial values; its mean is 1.
_GAMMA_SHAPE = 100.0


@_inside_fast
def _digamma(x: Any) -> Any:
    """Return the digamma function of x > 0 (Abramowitz and Stegun 1964, 6.3.5 and 6.3.18)."""
    above, below = 0.0, 1.0
    # Recurrence up to 6, where the asymptotic series is exact to double precision.
    while x < 6.0:  # the sum of 1 / x, 1 / (x + 1)... as one fraction
        above = above * x + below
        below *= x
        x += 1.0
    r = 1.0 / x
    square = r * r
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252)))
    return math.log(x) - 0.5 * r - series - above / below


@_inside_fast
def _write_log_expectation(gamma: Any, out: Any) -> None:
    """Write E[log p] for p with a Dirichlet distribution: digamma(g) - digamma(sum of g)."""
    total = 0.0
    for c in range(len(gamma)):
        total += gamma[c]
    digamma_of_total = _digamma(total)
    for c in range(len(gamma)):
        out[c] = _digamma(gamma[c]) - digamma_of_total


@_fast
def write_log_expectations(rows: Any, out: Any) -> None:
    """Write E[log p] of each row of parameters of a Dirichlet distribution."""
    for i in range(len(rows)):
        _write_log_expectation(rows[i], out[i])


@_inside_fast
def _write_exp_expectation(gamma: Any, scratch: Any, out: Any) -> None:
    """Write exp(E[log p]) without logarithms, since exp(digamma(x)) is about x."""
    total = 0.0
    for c in range(len(gamma)):
        total += gamma[c]
    factor = math.exp(-_digamma(total))
    for c in range(len(gamma)):
        x, above, below = gamma[c], 0.0, 1.0
        # All topics take the same six iterations, so that LLVM vectorises the loop over topics.
        for _ in range(6):  # as in `_digamma`, without a branch
            small = x < 6.0
            above = above * x + below if small else above
            below = below * x if small else below
            x = x + 1.0 if small else x
        r = 1.0 / x
        square = r * r
        series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252)))
        # digamma(x) = log(x) + this remainder, so exp of it is x * exp(remainder): one logarithm
        # less.
        out[c] = -0.5 * r - series - above / below
        scratch[c] = x * factor
    for c in range(len(out)):
        out[c] = scratch[c] * math.exp(out[c])


@_inside_fast
def _longest_document(indptr: Any, rows: Any) -> Any:
    """Return the maximum number of stored entries of a row."""
    most = 0
    for i in range(len(rows)):
        most = max(most, indptr[rows[i] + 1] - indptr[rows[i]])
    return most


@_fast
def fit_documents(
    indptr: Any, indices: Any, data: Any, rows: Any, topics: Any, prior: Any, max_iter: Any,
    tol: Any, gamma: Any, shares: Any,
) -> None:  # fmt: skip
    """Fit the topics of each document by coordinate ascent, starting from `gamma`, in place.

    Parameters
    ----------
    indptr, indices, data
        Arrays of a CSR block.
    rows : ndarray of int of shape (n,)
        Documents in the block.
    topics : ndarray of float64 of shape (n_words, k)
        exp(E[log beta]).
    prior : float
    max_iter : int
        Maximum iterations.
    tol : float
        Iterations end when the mean change of a document's `gamma` is below it.
    gamma : ndarray of float64 of shape (n, k)
    shares : ndarray of float64 of shape (n, k)
        Receives exp(E[log theta]).
    """
    k = topics.shape[1]
    word_topics = np.empty((_longest_document(indptr, rows), k))
    topic_counts = np.empty(k)
    for i in range(len(rows)):
        first = indptr[rows[i]]
        n = indptr[rows[i] + 1] - first
        # Rows of `topics` for the document's words are copied together: the iterations read them
        # often.
        for w in range(n):
            for c in range(k):
                word_topics[w, c] = topics[indices[first + w], c]
        document_gamma, share = gamma[i], shares[i]
        _write_exp_expectation(document_gamma, topic_counts, share)
        for _ in range(max_iter):
            for c in range(k):
                topic_counts[c] = 0.0
            for w in range(n):
                # Expected count of the word under the document's topics (Hoffman et al. 2010,
                # algorithm 2, with phi eliminated).
                mean = _MIN_MEAN
                for c in range(k):
                    mean += share[c] * word_topics[w, c]
                times = data[first + w] / mean
                for c in range(k):
                    topic_counts[c] += times * word_topics[w, c]
            change = 0.0
            for c in range(k):
                # gamma = prior + sum of counts times phi.
                value = share[c] * topic_counts[c] + prior
                change += abs(value - document_gamma[c])
                document_gamma[c] = value
            _write_exp_expectation(document_gamma, topic_counts, share)
            if change < tol * k:
                break


@_fast
def add_word_counts(
    indptr: Any, indices: Any, data: Any, rows: Any, topics: Any, shares: Any, out: Any
) -> None:
    """Add the expected number of times that topics generate each word, without the factor `topics`.

    Parameters as in `fit_documents`; `out` has shape (n_words, k).
    """
    k = topics.shape[1]
    for i in range(len(rows)):
        for entry in range(indptr[rows[i]], indptr[rows[i] + 1]):
            word = indices[entry]
            mean = _MIN_MEAN
            for c in range(k):
                mean += shares[i, c] * topics[word, c]
            # The sufficient statistic n * phi, without its factor exp(E[log beta]), which is the
            # same for all documents and multiplied in once.
            times = data[entry] / mean
            for c in range(k):
                out[word, c] += times * shares[i, c]


@_fast
def write_bounds(
    indptr: Any, indices: Any, data: Any, rows: Any, log_topics: Any, prior: Any, gamma: Any,
    out: Any,
) -> None:  # fmt: skip
    """Write each document's part of the variational bound, and its number of words.

    Parameters as in `fit_documents`, with E[log beta] in place of `topics`; `out` has shape (n, 2).
    """
    k = log_topics.shape[1]
    theta, terms = np.empty(k), np.empty(k)
    for i in range(len(rows)):
        _write_log_expectation(gamma[i], theta)
        # E[log p(theta)] - E[log q(theta)] of two Dirichlet distributions.
        total, score, n_words = 0.0, math.lgamma(prior * k), 0.0
        for c in range(k):
            total += gamma[i, c]
            score += (prior - gamma[i, c]) * theta[c]
            score += math.lgamma(gamma[i, c]) - math.lgamma(prior)
        score -= math.lgamma(total)
        for entry in range(indptr[rows[i]], indptr[rows[i] + 1]):
            word, highest = indices[entry], -np.inf
            for c in range(k):
                # log-sum-exp over topics, relative to the largest term.
                terms[c] = theta[c] + log_topics[word, c]
                highest = max(highest, terms[c])
            likelihood = 0.0
            for c in range(k):
                likelihood += math.exp(terms[c] - highest)
            score += data[entry] * (highest + math.log(likelihood))
            n_words += data[entry]
        out[i, 0], out[i, 1] = score, n_words


@_inside
def _next_random(state: Any) -> Any:
    """Return the next state of a splitmix64 stream, and a number in (0, 1)."""
    state += np.uint64(0x9E3779B97F4A7C15)
    bits = state
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    return state, (np.float64(bits >> np.uint64(11)) + 0.5) * 2.0**-53


@_exact
def draw_gamma(key: Any, row_numbers: Any, out: Any) -> None:
    """Draw from the gamma distribution of shape 100 and mean 1.

    Parameters
    ----------
    key : uint64
        Key of the stream.
    row_numbers : ndarray of int of shape (n,)
        Numbers of the rows; each row has its own draws.
    out : ndarray of float64 of shape (n, k)
    """
    # Marsaglia and Tsang (2000): a cubed normal, accepted with probability near 1.
    d = _GAMMA_SHAPE - 1.0 / 3.0
    scale = 1.0 / math.sqrt(9.0 * d)
    for i in range(out.shape[0]):
        # One stream per row, so that draws do not depend on which rows are processed together.
        state = key ^ (np.uint64(row_numbers[i] + 1) * np.uint64(0xD1342543DE82EF95))
        state, _ = _next_random(state)
        for c in range(out.shape[1]):
            while True:
                state, a = _next_random(state)
                state, b = _next_random(state)
                state, u = _next_random(state)
                # Box-Muller.
                normal = math.sqrt(-2.0 * math.log(a)) * math.cos(2.0 * math.pi * b)
                cube = (1.0 + scale * normal) ** 3
                if cube > 0.0 and math.log(u) < 0.5 * normal**2 + d * (1.0 - cube + math.log(cube)):
                    break
            out[i, c] = d * cube / _GAMMA_SHAPE
