"""Topics beside scikit-learn's, from the same starts; what changes nothing; what users hand it."""

from __future__ import annotations

import pickle
import re
import tarfile
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
from distributed import Client
from scipy import sparse
from sklearn.decomposition import LatentDirichletAllocation as Peer
from sklearn.decomposition._lda import _update_doc_distribution
from sklearn.pipeline import make_pipeline
from sklearn.utils import check_random_state

from daskml_dist import Run
from daskml_dist.backends import topic_kernels
from daskml_dist.decomposition import LatentDirichletAllocation
from daskml_dist.errors import InvalidDataError, InvalidParameterError, NotFittedError
from daskml_dist.feature_extraction import CountVectorizer
from daskml_dist.models.topics import DocumentFit, log_expectations

N, D, K = 240, 60, 4
CALM = Run(n_lanes=3, deterministic=True)


def _documents() -> Any:
    """Counts of words that each document takes from a quarter of the vocabulary, nearly."""
    rng = np.random.default_rng(0)
    is_of_topic = np.arange(D) % K == rng.integers(0, K, N)[:, None]
    return sparse.csr_array(rng.poisson(np.where(is_of_topic, 1.5, 0.05)).astype(np.float64))


X = _documents()


def _lazy(cut: int = 70) -> da.Array:
    parts = [X[start : start + cut] for start in range(0, N, cut)]
    blocks = [da.from_delayed(dask.delayed(part), part.shape, meta=X[:0]) for part in parts]
    return da.concatenate(blocks)


class _Draws:
    """Numbers for scikit-learn that documents of one block draw here."""

    def __init__(self, seed: int, n_before: int = 0) -> None:
        self.seed, self.round, self.rows = seed, n_before, np.arange(N)

    def gamma(self, shape: float, scale: float, size: tuple[int, int]) -> Any:
        out = np.empty(size)
        stream = np.random.SeedSequence((self.seed, self.round, 1))
        topic_kernels.draw_gamma(stream.generate_state(1, np.uint64)[0], self.rows[: size[0]], out)
        self.round += 1
        return out


def _peer(random_state: int = 0, **params: Any) -> Peer:
    """scikit-learn's, before its first step, with the draws made here."""
    generator = check_random_state(random_state)
    peer = Peer(K, random_state=generator, **params)
    peer._init_latent_vars(D)
    peer.random_state_ = _Draws(int(generator.randint(2**31 - 1)))
    return peer


@pytest.mark.parametrize("prior", [0.01, 0.25, 1.0])
def test_a_documents_topics_are_scikit_learns(prior: float) -> None:
    rng = np.random.default_rng(1)
    logs = log_expectations(rng.gamma(100, 0.01, (K, D)))
    start, topics = rng.gamma(100, 0.01, (N, K)), np.exp(logs)

    class Given:
        def gamma(self, *args: Any) -> Any:
            return start.copy()

    expected, words = _update_doc_distribution(X, topics, prior, 100, 1e-3, True, Given())
    turned = np.ascontiguousarray(topics.T)
    rows = np.arange(N)
    gamma, shares = DocumentFit(prior, 100, 1e-3)(X, rows, turned, start.copy())
    np.testing.assert_allclose(gamma, expected, rtol=1e-8)
    found = np.zeros((D, K))
    topic_kernels.add_word_counts(X.indptr, X.indices, X.data, rows, turned, shares, found)
    np.testing.assert_allclose(found.T, words, rtol=1e-8, atol=1e-12)


def test_draws_are_of_the_gamma_distribution() -> None:
    from scipy import stats

    out = np.empty((20_000, 3))
    topic_kernels.draw_gamma(np.uint64(3), np.arange(20_000), out)
    assert stats.kstest(out.ravel(), stats.gamma(100, scale=0.01).cdf).pvalue > 0.01
    np.testing.assert_allclose(np.corrcoef(out.T), np.eye(3), atol=0.03)
    some = np.empty((2, 3))
    topic_kernels.draw_gamma(np.uint64(3), np.array([17, 400]), some)
    np.testing.assert_array_equal(some, out[[17, 400]])


@pytest.mark.parametrize("rows", [X, X.toarray()], ids=["sparse", "dense"])
def test_the_same_start_ends_as_scikit_learns(rows: Any) -> None:
    peer = _peer()
    for _ in range(4):
        peer._em_step(X, total_samples=N, batch_update=True)
    ours = LatentDirichletAllocation(K, max_iter=4, random_state=0).fit(rows)
    np.testing.assert_allclose(ours.components_, peer.components_, rtol=1e-8)
    np.testing.assert_allclose(
        ours.exp_dirichlet_component_, peer.exp_dirichlet_component_, rtol=1e-8
    )
    assert ours.bound_ == pytest.approx(peer.perplexity(X), rel=1e-8)
    for method in ("perplexity", "score"):
        assert getattr(ours, method)(rows) == pytest.approx(getattr(peer, method)(X), rel=1e-8)
    np.testing.assert_allclose(ours.transform(rows), peer.transform(X), rtol=1e-7)
    raw = ours.transform(rows, normalize=False)
    np.testing.assert_allclose(raw, peer.transform(X, normalize=False), rtol=1e-7)
    assert (ours.n_iter_, ours.n_batch_iter_) == (4, 5)
    peer.total_samples = ours.total_samples
    assert ours.perplexity(rows, sub_sampling=True) == pytest.approx(
        peer.perplexity(X, sub_sampling=True), rel=1e-8
    )


def test_steps_after_each_batch_are_scikit_learns() -> None:
    peer, params = _peer(), {"learning_offset": 3.0, "learning_decay": 0.6}
    peer.set_params(**params)
    for batch in list(range(4)) * 2:
        rows = np.arange(batch, N, 4)
        peer.random_state_.rows = rows
        peer._em_step(X[rows], total_samples=N, batch_update=False)
    ours = LatentDirichletAllocation(
        K, learning_method="online", batch_size=60, max_iter=2, random_state=0, **params
    ).fit(X)
    np.testing.assert_allclose(ours.components_, peer.components_, rtol=1e-8)
    assert (ours.n_iter_, ours.n_batch_iter_) == (2, 9)


def test_partial_fits_continue() -> None:
    ours = LatentDirichletAllocation(K, batch_size=40, total_samples=N, random_state=0)
    for start in (0, 120):
        ours.partial_fit(X[start : start + 120])
    assert ours.n_batch_iter_ == 7
    assert not hasattr(ours, "bound_")
    whole = LatentDirichletAllocation(
        K, batch_size=40, learning_method="online", max_iter=1, random_state=0
    ).fit(X)
    assert ours.perplexity(X) == pytest.approx(whole.perplexity(X), rel=0.1)
    with pytest.raises(InvalidDataError, match="60 features"):
        ours.partial_fit(X[:, :50])


def test_topics_are_found() -> None:
    ours = LatentDirichletAllocation(K, max_iter=20, random_state=0).fit(_lazy())
    words = ours.components_.argsort(axis=1)[:, -10:]
    assert {tuple({*(row % K).tolist()}) for row in words} == {(c,) for c in range(K)}
    topics = ours.transform(_lazy())
    assert topics.chunks[0] == _lazy().chunks[0]
    np.testing.assert_allclose(topics.compute(), ours.transform(X), rtol=1e-12)
    unpickled = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(unpickled.transform(X), ours.transform(X))
    assert list(ours.get_feature_names_out()[:1]) == ["latentdirichletallocation0"]
    assert ours.perplexity(_lazy()) == pytest.approx(ours.bound_)


def test_iterations_end_where_the_perplexity_stays() -> None:
    model = LatentDirichletAllocation(K, max_iter=100, evaluate_every=2, random_state=0).fit(X)
    assert model.n_iter_ < 50
    assert model.n_iter_ % 2 == 0


@pytest.mark.parametrize("method", ["batch", "online"])
def test_workers_and_streaming_change_nothing(client: Client, method: str) -> None:
    params = {"learning_method": method, "batch_size": 100, "max_iter": 3, "random_state": 0}
    one, *_ = client.scheduler_info()["workers"]
    fits = []
    for rows in (client.persist(_lazy(), workers=[one]), client.persist(_lazy())):
        fits.append(LatentDirichletAllocation(K, run=CALM, **params).fit(rows))
    streamed = Run(n_lanes=3, deterministic=True, memory_budget=20_000)
    fits.append(LatentDirichletAllocation(K, run=streamed, **params).fit(_lazy()))
    assert [fit.history_.extra["streamed"] for fit in fits] == [False, False, True]
    for fit in fits[1:]:
        np.testing.assert_array_equal(fit.components_, fits[0].components_)
        assert fit.bound_ == pytest.approx(fits[0].bound_)
    # Another number of lanes: what documents begin with is the same.
    other = LatentDirichletAllocation(K, run=Run(n_lanes=2), **params).fit(_lazy())
    np.testing.assert_allclose(other.components_, fits[0].components_, rtol=1e-8)


BAD: dict[str, tuple[dict[str, Any], Any, type[Exception], str]] = {
    "negative": ({}, -X, InvalidDataError, "Negative values in data .*CountVectorizer"),
    "no word": ({}, X * 0, InvalidDataError, "X holds no words"),
    "NaN": ({}, np.where(X.toarray() > 4, np.nan, 1.0), InvalidDataError, "NaN"),
    "topics": ({"n_components": 0}, X, InvalidParameterError, "n_components=0"),
    "method": ({"learning_method": "both"}, X, InvalidParameterError, "learning_method"),
    "prior": ({"doc_topic_prior": -1.0}, X, InvalidParameterError, "doc_topic_prior"),
    "offset": ({"learning_offset": 0.0}, X, InvalidParameterError, "learning_offset"),
    "device": ({"run": Run(n_servers=2)}, X, InvalidParameterError, "does not use n_servers"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    params, rows, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        LatentDirichletAllocation(**params).fit(rows)


def test_bad_rows_of_a_fitted_model() -> None:
    with pytest.raises(NotFittedError):
        LatentDirichletAllocation().transform(X)
    model = LatentDirichletAllocation(2, max_iter=1).fit(X)
    for method in (model.transform, model.score, model.perplexity):
        with pytest.raises(InvalidDataError, match="Negative values"):
            method(-X)
    with pytest.raises(InvalidDataError, match="no word"):
        model.perplexity(X * 0)


@pytest.mark.data
@pytest.mark.slow
def test_topics_of_the_newsgroups(data_dir: Path) -> None:
    texts = []
    with tarfile.open(data_dir / "news20" / "20news-bydate.tar.gz") as archive:
        for member in archive:
            if member.isfile() and re.search(r"-train/(sci.space|rec.sport.hockey)", member.name):
                found = archive.extractfile(member)
                assert found is not None
                texts.append(re.split(r"\n\n|\t\t", found.read().decode("latin-1"), maxsplit=1)[-1])
    words = CountVectorizer(
        min_df=10, max_df=0.3, stop_words="english", token_pattern=r"[a-zA-Z]{3,}"
    )
    model = make_pipeline(words, LatentDirichletAllocation(6, max_iter=20, random_state=0))
    model.fit(db.from_sequence(texts, npartitions=4))
    names = words.get_feature_names_out()
    tops = [set(names[row]) for row in model[-1].components_.argsort(axis=1)[:, -15:]]
    for subject in (
        {"space", "nasa", "shuttle", "orbit", "launch", "earth", "moon", "satellite"},
        {"game", "team", "hockey", "season", "players", "nhl", "play", "period"},
    ):
        assert max(len(subject & top) for top in tops) >= 4
