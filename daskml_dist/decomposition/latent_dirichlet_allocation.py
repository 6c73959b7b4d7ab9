"""`LatentDirichletAllocation`: parameters of a fit, topics of documents, bound and perplexity.

The updates of documents (E-step) are in `models/topics.py`, the iterations over all documents and
the updates of the topics (M-step) in `solvers/latent_dirichlet.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from daskml_dist.errors import InvalidDataError
from daskml_dist.estimators.unsupervised import BaseUnlabelledTransformer
from daskml_dist.models.row_models import Unlabelled
from daskml_dist.models.topics import DocumentFit, counts_of, log_expectations, topics_bound
from daskml_dist.parameters.checks import check_count, check_number, check_one_of
from daskml_dist.parameters.run import Run
from daskml_dist.solvers.base import Solution
from daskml_dist.solvers.latent_dirichlet import LatentDirichletSolver
from daskml_dist.training.dataset_info import DatasetInfo


class LatentDirichletAllocation(BaseUnlabelledTransformer):
    """Topics of documents by variational Bayes, over all rows.

    Algorithm and parameters are scikit-learn's. Documents are not moved, in memory or streamed; the
    messages of a round have the size of the topics. All computations are in float64, on the CPU.

    Parameters
    ----------
    n_components : int, default=10
        Number of topics.
    doc_topic_prior, topic_word_prior : float or None, default=None
        Parameters alpha and eta of the Dirichlet priors, from 0 to 1; None: ``1 / n_components``.
    learning_method : {"batch", "online"}, default="batch"
        ``"batch"``: each iteration recomputes the topics from all documents. ``"online"``: a step
        after each `batch_size` documents, which with many documents needs fewer iterations for the
        same result.
        the same result.
    learning_decay : float, default=0.7
        Exponent kappa of the step sizes ``(learning_offset + t) ** -kappa``, from 0 to 1.
    learning_offset : float, default=10.0
        Offset tau_0 of the step sizes, at least 1: a large offset makes the first steps smaller.
    max_iter : int, default=10
        Passes over the documents.
    batch_size : int, default=128
        Number of documents in a step, drawn from all blocks in turn. Each step is a sum over the
        workers, so use thousands if there are many documents.
    evaluate_every : int, default=-1
        Iterations between two evaluations of the perplexity; 0 or less: no evaluation.
    total_samples : float, default=1e6
        Total number of documents, for :meth:`partial_fit`.
    perp_tol : float, default=0.1
        Change of the perplexity between evaluations below which the iterations end.
    mean_change_tol : float, default=1e-3
        Mean change of a document's topic parameters below which its iterations end.
    max_doc_update_iter : int, default=100
        Largest number of iterations for a document.
    n_jobs : int, default=None
        Accepted for scikit-learn's interface, without effect: `run` sets where a fit runs.
    random_state : int, RandomState instance or None, default=None
        Topics start from the same random numbers as in scikit-learn. Documents start from numbers
        that depend on their positions in their blocks: with the same chunks these are the same on
        any number of workers.

    Attributes
    ----------
    components_ : ndarray of float64 of shape (n_components, n_features)
        Parameters lambda of the topics' words: roughly how often each word came from a topic.
    exp_dirichlet_component_ : ndarray of float64 of shape (n_components, n_features)
        ``exp(E[log(beta)])``, with beta the shares of words in topics.
    bound_ : float
        Perplexity of the rows of the fit.
    n_batch_iter_ : int
        Number of updates of the topics, plus 1.
    n_iter_ : int
        Passes over the documents.
    doc_topic_prior_, topic_word_prior_ : float

    References
    ----------
    M. D. Hoffman, D. M. Blei and F. Bach, "Online learning for latent Dirichlet allocation", NIPS
    2010.

    Examples
    --------
    >>> from daskml_dist.decomposition import LatentDirichletAllocation
    >>> X = [[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 4, 4], [0, 1, 5, 3]]
    >>> model = LatentDirichletAllocation(n_components=2, random_state=0).fit(X)
    >>> topics = model.transform(X).argmax(axis=1)
    >>> bool(topics[0] == topics[1] != topics[2] == topics[3])
    True
    """

    #: Its loops are compiled only for the CPU; there is no parameter `device`.
    device = "cpu"

    def __init__(
        self,
        n_components: int = 10,
        *,
        doc_topic_prior: float | None = None,
        topic_word_prior: float | None = None,
        learning_method: str = "batch",
        learning_decay: float = 0.7,
        learning_offset: float = 10.0,
        max_iter: int = 10,
        batch_size: int = 128,
        evaluate_every: int = -1,
        total_samples: float = 1e6,
        perp_tol: float = 0.1,
        mean_change_tol: float = 1e-3,
        max_doc_update_iter: int = 100,
        n_jobs: int | None = None,
        verbose: int = 0,
        random_state: Any = None,
        run: Run | None = None,
        callbacks: Any = None,
    ) -> None:
        self.n_components = n_components
        self.doc_topic_prior = doc_topic_prior
        self.topic_word_prior = topic_word_prior
        self.learning_method = learning_method
        self.learning_decay = learning_decay
        self.learning_offset = learning_offset
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.evaluate_every = evaluate_every
        self.total_samples = total_samples
        self.perp_tol = perp_tol
        self.mean_change_tol = mean_change_tol
        self.max_doc_update_iter = max_doc_update_iter
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state
        self.run = run
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    # -- fitting -------------------------------------------------------------------------------

    # Without sample_weight, as in scikit-learn.
    def fit(  # type: ignore[override]
        self, X: Any, y: None = None, *, client: Any = None
    ) -> Self:
        """Find the topics.

        Parameters
        ----------
        X, client
            As in :meth:`daskml_dist.linear_model.SGDClassifier.fit`; counts of words.
        y : ignored

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError, InvalidDataError
            Before any pass, naming the remedy (negative numbers, or all zeros: later).
        TrainingError
            The fit cannot continue.
        """
        self._clear_fitted()
        self._fit(X, None, None, client)
        return self

    def partial_fit(self, X: Any, y: None = None, *, client: Any = None) -> Self:
        """Update the topics with more documents, out of `total_samples`; parameters as in `fit`."""
        first = not hasattr(self, "components_")
        # Read by `_problem` only, during this call.
        self._is_partial_fit = True
        try:
            self._fit(X, None, None, client, reset=first)
        finally:
            del self._is_partial_fit
        return self

    def fit_transform(  # type: ignore[override]
        self, X: Any, y: None = None, *, normalize: bool = True, client: Any = None
    ) -> Any:
        """Fit the topics and :meth:`transform` the same rows; parameters as in both."""
        return self.fit(X, client=client).transform(X, normalize=normalize)

    def _clear_fitted(self) -> None:
        for name in ("components_", "n_batch_iter_", "bound_"):
            self.__dict__.pop(name, None)

    def _check_params(self) -> None:
        for name in ("n_components", "max_iter", "batch_size", "max_doc_update_iter"):
            check_count(name, getattr(self, name))
        check_one_of("learning_method", self.learning_method, ("batch", "online"))
        for name in ("doc_topic_prior", "topic_word_prior"):
            if getattr(self, name) is not None:
                check_number(
                    name, getattr(self, name), lambda v: 0 < v <= 1, "> 0 and at most 1, or None"
                )
        check_number("learning_decay", self.learning_decay, lambda v: 0 <= v <= 1, "from 0 to 1")
        check_number("learning_offset", self.learning_offset, lambda v: v >= 1, ">= 1")
        check_number("total_samples", self.total_samples, lambda v: v > 0, "> 0")
        check_number("evaluate_every", self.evaluate_every, lambda v: True, "an integer")
        check_number("perp_tol", self.perp_tol)
        check_number("mean_change_tol", self.mean_change_tol)

    def _problem(self, rows: DatasetInfo) -> tuple[Unlabelled, LatentDirichletSolver]:
        n_rows, n_features = rows.summary.n_rows, rows.summary.n_features
        is_partial = hasattr(self, "_is_partial_fit")
        online = is_partial or self.learning_method == "online"
        generator = check_random_state(self.random_state)
        # A first fit; otherwise `partial_fit` continues from the existing topics and priors.
        if not hasattr(self, "components_"):
            share = 1.0 / self.n_components
            self.doc_topic_prior_ = self.doc_topic_prior or share
            self.topic_word_prior_ = self.topic_word_prior or share
            # Gamma(100, 0.01), with mean 1, as in the authors' code and scikit-learn.
            self._initial_topics = generator.gamma(100.0, 0.01, (self.n_components, n_features))
        return Unlabelled(n_features), LatentDirichletSolver(
            doc_topic_prior=float(self.doc_topic_prior_),
            topic_word_prior=float(self.topic_word_prior_),
            max_iter=1 if is_partial else int(self.max_iter),
            # Rounded up: the last batch may be smaller.
            n_batches=-(-n_rows // int(self.batch_size)) if online else None,
            learning_decay=float(self.learning_decay),
            learning_offset=float(self.learning_offset),
            # A step scales the words of its batch up to all documents (algorithm 2).
            total_samples=float(self.total_samples if is_partial else n_rows),
            evaluate_every=0 if is_partial else int(self.evaluate_every),
            perp_tol=float(self.perp_tol),
            with_bound=not is_partial,
            max_doc_update_iter=int(self.max_doc_update_iter),
            mean_change_tol=float(self.mean_change_tol),
            seed=int(generator.randint(2**31 - 1)),
            # Step sizes continue to shrink over calls of `partial_fit`.
            n_before=getattr(self, "n_batch_iter_", 1) - 1,
        )

    def _starting_parameters(self, model: Unlabelled, rows: DatasetInfo) -> NDArray[Any]:
        return (
            self.components_
            if hasattr(self, "components_")
            else self.__dict__.pop("_initial_topics")
        )

    def _set_fitted(self, solution: Solution, model: Unlabelled, rows: DatasetInfo) -> None:
        # The per-word perplexity is infinite if there are no words.
        if np.isinf(solution.extra.get("bound", 0.0)):
            raise InvalidDataError(
                "X holds no words: all its counts are 0. Check the vocabulary of the vectorizer "
                "that made it."
            )
        # Unnormalised, as in scikit-learn.
        self.components_ = solution.w
        self.exp_dirichlet_component_ = np.exp(log_expectations(solution.w))
        self.n_batch_iter_ = getattr(self, "n_batch_iter_", 1) + int(solution.extra["n_updates"])
        if "bound" in solution.extra:
            self.bound_ = float(solution.extra["bound"])
        self.n_features_in_ = model.n_features

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    # -- functions of rows ---------------------------------------------------------------------

    def transform(self, X: Any, *, normalize: bool = True) -> Any:
        """Return the topics of each document.

        Parameters
        ----------
        X : as in :meth:`fit`
        normalize : bool, default=True
            Whether to return the shares of the topics, instead of the parameters gamma of their
            Dirichlet distribution.

        Returns
        -------
        ndarray or lazy dask Array of float64 of shape (n_rows, n_components)
        """
        self._check_fitted(X)
        topics = partial(_find_topics, *self._document_fit(), normalize)
        return self._map_rows(topics, X, np.float64, self._n_features_out)

    def score(self, X: Any, y: None = None) -> float:
        """Return the variational bound of the log-likelihood of documents.

        Parameters
        ----------
        X : as in :meth:`fit`
        y : ignored
        """
        return float(
            self._sum_bounds(X)[0] + topics_bound(self.components_, self.topic_word_prior_)
        )

    def perplexity(self, X: Any, sub_sampling: bool = False) -> float:
        """Return the perplexity of documents: ``exp(-bound / words)``.

        Parameters
        ----------
        X : as in :meth:`fit`
        sub_sampling : bool, default=False
            Whether to treat the documents as a sample of `total_samples`.
        """
        score, n_words, n_rows = self._sum_bounds(X)
        if n_words == 0:
            raise InvalidDataError("X holds no words: all its counts are 0. Pass other rows.")
        # The documents' part of the bound is scaled up; the topics' part counts once.
        ratio = self.total_samples / n_rows if sub_sampling else 1.0
        bound = ratio * score + topics_bound(self.components_, self.topic_word_prior_)
        return float(np.exp(-bound / (ratio * n_words)))

    def _sum_bounds(self, X: Any) -> Any:
        """Return the documents' part of the bound, and the numbers of words and documents."""
        self._check_fitted(X)
        return self._sum_over_blocks(_sum_block, X, None, None)

    def _raw_prediction(self) -> Callable[[Any], NDArray[Any]]:
        return partial(_compute_bounds, *self._document_fit())

    def _document_fit(self) -> tuple[DocumentFit, NDArray[np.float64]]:
        fit = DocumentFit(
            float(self.doc_topic_prior_),
            int(self.max_doc_update_iter),
            float(self.mean_change_tol),
        )
        return fit, np.ascontiguousarray(log_expectations(self.components_).T)


def _find_topics(
    fit: DocumentFit, log_topics: NDArray[np.float64], normalize: bool, X: Any
) -> NDArray[Any]:
    """Return the topics of rows of counts."""
    gamma = fit.gamma_of(counts_of(X), np.exp(log_topics))
    return gamma / gamma.sum(axis=1, keepdims=True) if normalize else gamma


def _compute_bounds(fit: DocumentFit, log_topics: NDArray[np.float64], X: Any) -> NDArray[Any]:
    """Return the parts of the bound, and the number of words, of each row of counts."""
    return fit.bounds_of(counts_of(X), log_topics)


def _sum_block(y: None, document_bounds: NDArray[Any], weight: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sums of a block's bounds and words, and its number of documents."""
    return np.array([*document_bounds.sum(axis=0), len(document_bounds)])
