"""Latent Dirichlet allocation by variational Bayes: sums over documents, given the topics.

The E-step of Hoffman et al. is the sum (:class:`TopicWords`): it infers each document's topics and
sums how often each topic generates each word. The solver computes the M-step, from all documents
(their algorithm 1) or from a part of them (algorithm 2, online). :class:`DocumentBounds` sums the
variational bound, from which the perplexity follows.

References
----------
M. D. Hoffman, D. M. Blei and F. Bach, "Online learning for latent Dirichlet allocation", NIPS
2010.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from daskml_dist.backends.base import Backend, is_sparse
from daskml_dist.backends.csr_rows import CSRRows
from daskml_dist.models.base import BatchRows
from daskml_dist.models.topics import DocumentFit, check_counts, log_expectations, topics_bound
from daskml_dist.solvers.base import Array, Solution, Solver, Statistic, Sums


@dataclass(frozen=True, eq=False)
class _DocumentStatistic(Statistic):
    """Base class of sums over documents whose topics are inferred first.

    Parameters
    ----------
    prior, max_iter, tol
        As of :class:`DocumentFit`.
    signed : bool
        Whether to allow negative counts.
    """

    prior: float
    max_iter: int
    tol: float
    signed: bool = field(default=False, kw_only=True)

    @property
    def fit(self) -> DocumentFit:
        """Return the inference of a document's topics."""
        return DocumentFit(self.prior, self.max_iter, self.tol)

    def _host_counts(self, rows: Any, backend: Backend) -> tuple[Any, NDArray[np.intp]]:
        """Return a CSR matrix in host memory, and the indices of the rows in it."""
        if isinstance(rows, CSRRows):
            X, indices = rows.X, rows.rows
        else:
            dense = backend.to_numpy(rows.toarray() if is_sparse(rows) else rows)
            X, indices = sparse.csr_array(dense), np.arange(len(dense))
        if not self.signed:
            check_counts(X.data)
        return X, indices


@dataclass(frozen=True, eq=False)
class TopicWords(_DocumentStatistic):
    """Expected number of times that each topic generates each word, divided by `topics`.

    A last row holds the number of documents.

    Parameters
    ----------
    topics : ndarray of float64 of shape (n_words, k)
        exp(E[log beta]).
    seed, round : int
        Seed of the documents' initial parameters, with their positions in X.
    batch, n_batches : int
        The part of the documents: every `n_batches`-th one of a block.
    """

    topics: Array
    seed: int
    round: int
    batch: int = 0
    n_batches: int = 1

    def shape(self, model: Any) -> tuple[int, ...]:
        return len(self.topics) + 1, self.topics.shape[1]

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> None:
        from daskml_dist.backends import topic_kernels

        X, indices = self._host_counts(rows.X, backend)
        # The first document of a block is in another batch than that of the next block, so that
        # short blocks fill all batches equally.
        first_drawn = (self.batch - rows.first - max(rows.block, 0)) % self.n_batches
        drawn = np.arange(first_drawn, len(indices), self.n_batches)
        # The variational parameters of a document start at random, drawn by its position only: the
        # same on any worker.
        stream = np.random.SeedSequence((self.seed, self.round, rows.block + 1))
        gamma = np.empty((len(drawn), self.topics.shape[1]))
        topic_kernels.draw_gamma(stream.generate_state(1, np.uint64)[0], rows.first + drawn, gamma)
        # E-step: gamma and phi in turn, up to `max_iter` times.
        _, shares = self.fit(X, indices[drawn], self.topics, gamma)
        sums = backend.to_numpy(out)
        if not sums.flags.writeable:
            sums = sums.copy()
        csr = X.indptr, X.indices, X.data
        topic_kernels.add_word_counts(*csr, indices[drawn], self.topics, shares, sums[:-1])
        sums[-1] += len(drawn)
        if sums is not out:
            out[...] = backend.to_device(sums)


@dataclass(frozen=True, eq=False)
class DocumentBounds(_DocumentStatistic):
    """The documents' part of the variational bound, and the number of their words.

    Parameters
    ----------
    log_topics : ndarray of float64 of shape (n_words, k)
        E[log beta].
    """

    log_topics: Array

    def shape(self, model: Any) -> tuple[int, ...]:
        return (2,)

    def add(self, model: Any, rows: BatchRows, out: Any, backend: Backend) -> Any:
        X, indices = self._host_counts(rows.X, backend)
        bounds = self.fit.bounds_of(X[indices], self.log_topics).sum(axis=0)
        out += backend.to_device(bounds)
        return -float(bounds[0])


@dataclass(frozen=True)
class LatentDirichletSolver(Solver):
    """Solver by variational Bayes, in batch or online over parts of the documents.

    Parameters
    ----------
    doc_topic_prior, topic_word_prior : float
    max_iter : int
        Passes over the documents.
    n_batches : int or None
        Parts of the documents, after each of which the topics take a step ("online"); None: they
        are computed from all documents ("batch").
    learning_decay, learning_offset : float
        Exponent and offset of the learning rate (kappa and tau_0).
    total_samples : float
        Number of documents that a part represents (D).
    evaluate_every : int
        Iterations between two evaluations of the perplexity; 0 or less: none.
    perp_tol : float
        The iterations end if the perplexity changes by less.
    with_bound : bool
        Whether to evaluate the perplexity at the end.
    max_doc_update_iter, mean_change_tol
        As of :class:`DocumentFit`.
    seed : int
    n_before : int
        Updates before this fit, which the learning rate counts too.
    """

    name = "variational_bayes"
    doc_topic_prior: float
    topic_word_prior: float
    max_iter: int
    n_batches: int | None
    learning_decay: float
    learning_offset: float
    total_samples: float
    evaluate_every: int
    perp_tol: float
    with_bound: bool
    max_doc_update_iter: int
    mean_change_tol: float
    seed: int
    n_before: int = 0

    @property
    def max_passes(self) -> int:
        """Return one pass for each part of the documents, and one for each perplexity."""
        evaluations = self.max_iter // self.evaluate_every if self.evaluate_every > 0 else 0
        return self.max_iter * (self.n_batches or 1) + evaluations + 1

    def solve(self, model: Any, sums: Sums, start: Array | None) -> Solution:
        """Return the parameters of the topics' words, from initial ones."""
        assert start is not None
        progress = _TopicState(start, perplexity=np.inf)
        if sums.kept is not None:
            numbers = sums.kept["numbers"]
            progress = _TopicState(sums.kept["components"], int(numbers[0]), float(numbers[1]))
        n_batches = self.n_batches or 1
        while progress.n_updates < self.max_iter * n_batches and not sums.should_stop:
            self._update_topics(progress, sums)
            if progress.n_updates % n_batches == 0 and self._has_converged(progress, sums):
                break
            if progress.n_updates < self.max_iter * n_batches:
                sums.keep(
                    progress.components, progress.state, extra={"n_updates": progress.n_updates}
                )
        extra: dict[str, Any] = {"n_updates": progress.n_updates}
        if self.with_bound:
            extra["bound"] = self._perplexity(progress, sums)  # scikit-learn's name for it
        return Solution(progress.components, -(-progress.n_updates // n_batches), extra=extra)

    def _update_topics(self, progress: _TopicState, sums: Sums) -> None:
        """Update the topics by all documents, or by a step toward those of the next part."""
        n_batches, topics = self.n_batches or 1, np.exp(progress.log_topics)
        rounds = self.n_before + progress.n_updates
        batch_sums = sums(
            TopicWords(
                **self._document_settings, topics=topics, seed=self.seed, round=rounds,
                batch=progress.n_updates % n_batches, n_batches=n_batches,
            )
        )  # fmt: skip
        word_counts, n_documents = (batch_sums[:-1] * topics).T, batch_sums[-1, 0]
        progress.n_updates += 1
        if self.n_batches is None:
            # lambda = eta + sum over documents of n phi (algorithm 1).
            progress.set_components(self.topic_word_prior + word_counts)
        elif n_documents:
            # rho_t = (tau_0 + t)^-kappa; lambda moves toward the topics of a corpus of D documents
            # like these (algorithm 2).
            rate = (self.learning_offset + rounds + 1) ** -self.learning_decay
            target = self.topic_word_prior + self.total_samples / n_documents * word_counts
            progress.set_components((1 - rate) * progress.components + rate * target)

    def _has_converged(self, progress: _TopicState, sums: Sums) -> bool:
        """Return whether the perplexity is due for evaluation and has stopped changing."""
        n_iter = progress.n_updates // (self.n_batches or 1)
        if self.evaluate_every <= 0 or n_iter % self.evaluate_every:
            return False
        last_perplexity, progress.perplexity = progress.perplexity, self._perplexity(progress, sums)
        return bool(abs(last_perplexity - progress.perplexity) < self.perp_tol)

    def _perplexity(self, progress: _TopicState, sums: Sums) -> float:
        """Return exp of minus the variational bound per word, of all documents."""
        score, n_words = sums(
            DocumentBounds(**self._document_settings, log_topics=progress.log_topics)
        )
        bound = score + topics_bound(progress.components, self.topic_word_prior)
        return float(np.exp(-bound / n_words)) if n_words > 0 else np.inf

    @property
    def _document_settings(self) -> dict[str, Any]:
        return {
            "prior": self.doc_topic_prior,
            "max_iter": self.max_doc_update_iter,
            "tol": self.mean_change_tol,
        }


class _TopicState:
    """Topics after some updates.

    Parameters
    ----------
    components : ndarray of shape (k, n_words)
        Parameters of the topics' Dirichlet distributions (lambda).
    n_updates : int
    perplexity : float
        The value that was evaluated last.
    """

    def __init__(self, components: Array, n_updates: int = 0, perplexity: float = np.inf) -> None:
        self.n_updates, self.perplexity = n_updates, perplexity
        self.set_components(components)

    def set_components(self, components: Array) -> None:
        """Replace the parameters, and the values derived from them."""
        self.components = np.ascontiguousarray(components)
        #: E[log beta], of shape (n_words, k).
        self.log_topics = np.ascontiguousarray(log_expectations(self.components).T)

    def state(self) -> dict[str, Array]:
        """Return the topics as arrays by name."""
        numbers = np.array([self.n_updates, self.perplexity])
        return {"components": self.components, "numbers": numbers}
