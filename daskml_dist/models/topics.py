"""Latent Dirichlet allocation: topics of documents, given the topics' words.

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
    """Finder of the topics of documents.

    Parameters
    ----------
    prior : float
        Of a document's topics.
    max_iter : int
    tol : float
        Mean change of a document's parameters at which its iterations end.
    """

    prior: float
    max_iter: int
    tol: float

    def __call__(
        self, X: Any, rows: NDArray[np.intp], topics: Array, gamma: Array
    ) -> tuple[Array, Array]:
        """Return the topic distributions of some documents.

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
        """Return the topic parameters of all rows, from a start that is the same for all."""
        start = np.ones((X.shape[0], topics.shape[1]))
        return self(X, np.arange(X.shape[0]), topics, start)[0]

    def bounds_of(self, X: Any, log_topics: Array) -> Array:
        """Return each row's part of the variational bound and its number of words: shape (n, 2)."""
        from daskml_dist.backends import topic_kernels

        gamma, out = self.gamma_of(X, np.exp(log_topics)), np.empty((X.shape[0], 2))
        rows = np.arange(X.shape[0])
        topic_kernels.write_bounds(
            X.indptr, X.indices, X.data, rows, log_topics, self.prior, gamma, out
        )
        return out


def log_expectations(parameters: Array) -> Array:
    """Return E[log p] for each row of parameters of a Dirichlet distribution."""
    from daskml_dist.backends import topic_kernels

    out = np.empty_like(parameters)
    topic_kernels.write_log_expectations(parameters, out)
    return out


def topics_bound(components: Array, prior: float) -> float:
    """Return the part of the variational bound that belongs to the topics' word distributions."""
    score = ((prior - components) * log_expectations(components)).sum()
    score += (gammaln(components) - gammaln(prior)).sum()
    score += (gammaln(prior * components.shape[1]) - gammaln(components.sum(axis=1))).sum()
    return float(score)


def check_counts(counts: NDArray[Any]) -> None:
    """Check that counts of words are not negative."""
    if counts.size and counts.min() < 0:
        raise InvalidDataError(
            "Negative values in data passed to LatentDirichletAllocation: X must hold counts of "
            "words. Take those of CountVectorizer."
        )


def counts_of(X: Any) -> Any:
    """Return rows of counts as CSR, after checking them."""
    counts = X if sparse.issparse(X) else sparse.csr_array(X)
    check_counts(counts.data)
    return counts
