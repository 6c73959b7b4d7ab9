"""Latent Dirichlet allocation: the E-step, topics of documents given the topics' words.

In the papers' letters: theta are the topic shares of a document, with a Dirichlet posterior of
parameters `gamma`; beta are the word shares of a topic, of parameters `components` (lambda); phi,
the topic of a single word, is not stored. The loops are in `backends/topic_kernels.py`.

References
----------
D. M. Blei, A. Y. Ng and M. I. Jordan, "Latent Dirichlet allocation", JMLR 3, 2003.
M. D. Hoffman, D. M. Blei and F. Bach, "Online learning for latent Dirichlet allocation", NIPS 2010.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import gammaln

from daskml_dist.errors import InvalidDataError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DocumentFit:
    """Function that fits the topics of documents, each independently of the others.

    Parameters
    ----------
    prior : float
        Parameter alpha of the symmetric Dirichlet prior of a document's topics.
    max_iter : int
        Most iterations of a document.
    tol : float
        Mean change of gamma over the topics at which a document's iterations end.
    """

    prior: float
    max_iter: int
    tol: float

    def __call__(
        self, X: Any, rows: NDArray[np.intp], topics: Array, gamma: Array
    ) -> tuple[Array, Array]:
        """Return gamma of some documents, and exp(E[log theta]), both of shape (n, k).

        Updates of phi and gamma in turn (Hoffman et al., algorithm 1, E-step).

        Parameters
        ----------
        X : CSR matrix of shape (n_rows, n_words)
        rows : ndarray of int of shape (n,)
        topics : ndarray of shape (n_words, k)
            exp(E[log beta]).
        gamma : ndarray of shape (n, k)
            Parameters of the documents' topics to start from; becomes the result.
        """
        from daskml_dist.backends import topic_kernels

        shares = np.empty_like(gamma)
        topic_kernels.fit_documents(
            X.indptr, X.indices, X.data, rows, topics, self.prior, self.max_iter, self.tol, gamma,
            shares,
        )  # fmt: skip
        return gamma, shares

    def gamma_of(self, X: Any, topics: Array) -> Array:
        """Return gamma of all rows, for ``topics = exp(E[log beta])``."""
        # Every document starts from the same values, so that the result does not depend on its
        # position.
        start = np.ones((X.shape[0], topics.shape[1]))
        return self(X, np.arange(X.shape[0]), topics, start)[0]

    def bounds_of(self, X: Any, log_topics: Array) -> Array:
        """Return each row's terms of the variational bound, and its number of words: (n, 2).

        The terms of the bound (Hoffman et al., section 2.1) that belong to a document.
        """
        from daskml_dist.backends import topic_kernels

        # The bound holds for any gamma; the E-step finds that of the largest bound.
        gamma, bounds = self.gamma_of(X, np.exp(log_topics)), np.empty((X.shape[0], 2))
        rows = np.arange(X.shape[0])
        topic_kernels.write_bounds(
            X.indptr, X.indices, X.data, rows, log_topics, self.prior, gamma, bounds
        )
        return bounds


def log_expectations(parameters: Array) -> Array:
    """Return E[log p] = psi(parameter) - psi(their sum), for each row of Dirichlet parameters."""
    from daskml_dist.backends import topic_kernels

    expectations = np.empty_like(parameters)
    topic_kernels.write_log_expectations(parameters, expectations)
    return expectations


def topics_bound(components: Array, prior: float) -> float:
    """Return the terms of the variational bound that belong to the topics' words.

    E[log p(beta | eta)] - E[log q(beta | lambda)] (Hoffman et al., section 2.1).
    """
    # Two Dirichlet log-densities under q: their exponents, then their normalising constants.
    score = ((prior - components) * log_expectations(components)).sum()
    score += (gammaln(components) - gammaln(prior)).sum()
    score += (gammaln(prior * components.shape[1]) - gammaln(components.sum(axis=1))).sum()
    return float(score)


def check_counts(counts: NDArray[Any]) -> None:
    """Raise `InvalidDataError` for negative counts of words."""
    if counts.size and counts.min() < 0:
        raise InvalidDataError(
            "Negative values in data passed to LatentDirichletAllocation: X must hold counts of "
            "words. Take those of CountVectorizer."
        )


def counts_of(X: Any) -> Any:
    """Return rows of counts as CSR, after checking them."""
    # A document has few of all words: dense rows are also read by their nonzero entries.
    counts = X if sparse.issparse(X) else sparse.csr_array(X)
    check_counts(counts.data)
    return counts
