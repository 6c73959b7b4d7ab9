"""Statistics on arrays of a GPU: the sums of the CPU, and no array of the host among the others.

The GPU's arrays are array-api-strict's here, which refuse to mix with NumPy's.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import sparse

from daskml_dist import solvers
from daskml_dist.backends import Backend, get_backend
from daskml_dist.comm.packing import pack_object, take_apart, unpack_object
from daskml_dist.errors import InvalidDataError
from daskml_dist.losses import LOSSES
from daskml_dist.models import curvature
from daskml_dist.models.base import BatchRows
from daskml_dist.models.linear import LinearModel
from daskml_dist.models.naive_bayes import RowsByClass
from daskml_dist.models.unlabelled import Unlabelled
from daskml_dist.solvers import Statistic, moments, rows
from daskml_dist.solvers.bisecting import InLeaf, LeafErrors, Leaves
from daskml_dist.solvers.boosting import Correlations, LongestRow
from daskml_dist.solvers.by_class import ClassCounts, ClassMoments
from daskml_dist.solvers.categories import CategoryCounts, NumberOfCategories
from daskml_dist.solvers.em import DrawnMoments, ExpectedMoments, NearestMoments
from daskml_dist.solvers.huber import HuberSums
from daskml_dist.solvers.lloyd import Assignment, Farthest
from daskml_dist.solvers.moments import Moments
from daskml_dist.solvers.multiplicative import MultiplicativeStep, StepWeights
from daskml_dist.solvers.newton import LossHessian
from daskml_dist.solvers.nmf import LeastSquaresWeights
from daskml_dist.solvers.nonnegative import HalfNorms, Totals
from daskml_dist.solvers.objective import LossGradient
from daskml_dist.solvers.power import GramProducts
from daskml_dist.solvers.scatter import Scatter
from daskml_dist.solvers.seeds import CandidateWeights, Seeds
from daskml_dist.solvers.smoothing import RoundedTube
from daskml_dist.solvers.topics import DocumentBounds, TopicWords
from daskml_dist.training.worker.loops.questions import question_kinds
from tests.cuda_emulation import EmulatedCupy
from tests.strict_backend import DEVICES, StrictBackend

for _module in pkgutil.iter_modules(solvers.__path__):
    importlib.import_module(f"{solvers.__name__}.{_module.name}")

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
N_ROWS, N_FEATURES = 60, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N_ROWS, N_FEATURES)) + 1
CODES = RNG.integers(0, 3, N_ROWS)
SIGNS = np.where(RNG.random(N_ROWS) < 0.5, -1.0, 1.0)
NUMBERS = RNG.normal(size=N_ROWS)
WEIGHT = RNG.random(N_ROWS) * 2
#: Cases of linear models: classes, columns of the target, and the encoded target.
TASKS: dict[str, tuple[int, int | None, Any]] = {
    "two": (2, None, SIGNS),
    "three": (3, None, CODES.astype(np.int32)),
    "number": (0, None, NUMBERS),
    "numbers": (0, 2, RNG.normal(size=(N_ROWS, 2))),
}

#: A model, a statistic and the targets that it adds up.
Sample = tuple[Any, Statistic, Any]


def _linear(
    make: Callable[[Any], Statistic], losses: dict[str, list[str]]
) -> Iterator[tuple[str, Sample]]:
    """Samples with and without an intercept; `make` takes the parameters."""
    for task, names in losses.items():
        n_classes, n_targets, y = TASKS[task]
        for name in names:
            for intercept in (True, False):
                model = LinearModel(LOSSES[name](), N_FEATURES, n_classes, intercept, n_targets)
                w = np.random.default_rng(1).normal(size=model.shape) / 3
                yield f"{name}-{task}-{'intercept' if intercept else 'plain'}", (model, make(w), y)


def _moments() -> Iterator[tuple[str, Sample]]:
    for task in ("number", "numbers"):
        _, n_targets, y = TASKS[task]
        model = LinearModel(LOSSES["squared_error"](), N_FEATURES, 0, True, n_targets)
        y_shift, x_shift = RNG.normal(size=n_targets or 1), RNG.normal(size=N_FEATURES)
        transform = RNG.normal(size=(N_FEATURES, N_FEATURES))
        yield f"{task}-plain", (model, Moments(y_shift), y)
        yield f"{task}-shifted", (model, Moments(y_shift, x_shift), y)
        yield f"{task}-transformed", (model, Moments(y_shift, x_shift, transform), y)


def _by_class(**statistics: Statistic) -> Iterator[tuple[str, Sample]]:
    for n_classes in (2, 3):
        for name, statistic in statistics.items():
            model = RowsByClass(N_FEATURES, n_classes)
            yield f"{name}-{n_classes}", (model, statistic, np.minimum(CODES, n_classes - 1))


def _of_leaves() -> dict[type[Statistic], dict[str, Sample]]:
    """Sums over a leaf of three."""
    rng, model = np.random.default_rng(2), Unlabelled(N_FEATURES)
    pairs, split = rng.normal(size=(2, 2, N_FEATURES)) + 1, np.array([0, 1])
    trees = {
        "near": Leaves(split, pairs, pairs.mean(axis=1)),
        "there": Leaves(split, pairs, None),
    }
    asked = {
        "sums": Assignment(pairs[0], None),
        "seeds": Seeds(3, (pairs[0],), None, 0, 1),
        "farthest": Farthest(3, pairs[0], None),
    }
    return {
        InLeaf: {
            f"{name}-{what}": (model, InLeaf(sums, tree, 2), None)
            for name, tree in trees.items()
            for what, sums in asked.items()
        },
        LeafErrors: {name: (model, LeafErrors(tree), None) for name, tree in trees.items()},
    }


def _of_centres(statistic: type[Statistic], **more: Any) -> dict[str, Sample]:
    """Samples near the origin, and where rows lie."""
    centres, model = np.random.default_rng(1).normal(size=(4, N_FEATURES)), Unlabelled(N_FEATURES)
    shifts = {"near": X.mean(axis=0), "there": None}
    drawn = statistic in (Seeds, CandidateWeights)
    where: dict[str, Any] = (
        {"groups": (centres[:1], centres[1:])} if drawn else {"centres": centres}
    )
    return {
        name: (model, statistic(shift=shift, **where, **more), None)
        for name, shift in shifts.items()
    }


def _of_documents() -> dict[type[Statistic], dict[str, Sample]]:
    topics, model = np.random.default_rng(1).random((N_FEATURES, 3)), Unlabelled(N_FEATURES)
    how: dict[str, Any] = {"prior": 0.5, "max_iter": 5, "tol": 0.0, "signed": True}
    words = TopicWords(topics=topics, seed=0, round=1, batch=1, n_batches=2, **how)
    bounds = DocumentBounds(log_topics=np.log(topics), **how)
    return {
        TopicWords: {"half": (model, words, None)},
        DocumentBounds: {"all": (model, bounds, None)},
    }


def _of_parts() -> dict[type[Statistic], dict[str, Sample]]:
    """Sums of non-negative factorisations; rows of a GPU, and of few, begin alike."""
    across, model = np.random.default_rng(1).random((N_FEATURES, 3)), Unlabelled(N_FEATURES)
    vectors = np.random.default_rng(2).normal(size=(N_FEATURES, 3))
    exact: dict[str, Any] = {"sweeps": 9, "tol": 0.0, "l1": 0.1, "l2": 0.2}
    steps = {
        f"{beta}-{'drawn' if spread else 'vectors'}": MultiplicativeStep(
            across,
            StepWeights(
                3, None if spread else vectors, 0.3, spread, beta=beta, history=(across,), l1=0.1
            ),
            anew=bool(spread),
            looks=True,
        )
        for beta, spread in ((2.0, 0.5), (2.0, 0.0), (1.0, 0.0), (1.0, 0.5))
    }
    return {
        Totals: {"all": (model, Totals(counts=True, signed=True), None)},
        HalfNorms: {"all": (model, HalfNorms(vectors), None)},
        LeastSquaresWeights: {
            "sums": (model, LeastSquaresWeights(across, **exact), None),
            "error": (model, LeastSquaresWeights(across, **exact, only_error=True), None),
        },
        MultiplicativeStep: {name: (model, step, None) for name, step in steps.items()},
    }


def _of_components(statistic: type[Statistic], **more: Any) -> dict[str, Sample]:
    """Samples of whole covariances, and of variances."""
    rng, model = np.random.default_rng(1), Unlabelled(N_FEATURES)
    means, factors = rng.normal(size=(3, N_FEATURES)), rng.normal(size=(3, N_FEATURES, N_FEATURES))
    found = {}
    for whole in (True, False):
        given = (
            dict(more, factors=factors if whole else factors[0, :3])
            if "constants" in more
            else more
        )
        name = "whole" if whole else "diagonal"
        found[name] = model, statistic(means, X.mean(axis=0), whole, **given), None
    return found


#: Samples of each statistic. What is new gets a line here.
SAMPLES: dict[type[Statistic], dict[str, Sample]] = {
    LossGradient: dict(
        _linear(
            LossGradient,
            {
                "two": ["log_loss"],
                "three": ["log_loss", "hinge"],
                "number": ["poisson"],
                "numbers": ["squared_error"],
            },
        )
    ),
    LossHessian: {
        **dict(
            _linear(
                LossHessian,
                {
                    "two": ["log_loss"],
                    "three": ["log_loss"],
                    "number": ["poisson"],
                    "numbers": ["squared_error"],
                },
            )
        ),
        **{
            f"tube-{epsilon}-{name}": sample
            for epsilon in (0.0, 0.3)
            for name, sample in _linear(
                lambda w, epsilon=epsilon: LossHessian(w, RoundedTube(epsilon, 0.5)),
                {"number": ["epsilon_insensitive"]},
            )
        },
    },
    HuberSums: dict(_linear(lambda w: HuberSums(w, 0.7, 1.35), {"number": ["squared_error"]})),
    LongestRow: dict(_linear(lambda w: LongestRow(), {"two": ["log_loss"]})),
    Correlations: dict(_linear(Correlations, {"two": ["log_loss"], "three": ["log_loss"]})),
    Moments: dict(_moments()),
    ClassCounts: dict(_by_class(plain=ClassCounts(), over=ClassCounts(threshold=1.0))),
    ClassMoments: dict(_by_class(plain=ClassMoments())),
    NumberOfCategories: dict(_by_class(plain=NumberOfCategories(signed=True))),
    CategoryCounts: dict(_by_class(plain=CategoryCounts((3, 1, 2, 2, 4)))),
    Assignment: _of_centres(Assignment),
    Farthest: _of_centres(Farthest, n_rows=3),
    Seeds: _of_centres(Seeds, n_rows=3, seed=0, round=1),
    CandidateWeights: _of_centres(CandidateWeights),
    **_of_leaves(),
    **_of_documents(),
    **_of_parts(),
    ExpectedMoments: _of_components(ExpectedMoments, constants=np.log([0.2, 0.3, 0.5])),
    NearestMoments: _of_components(NearestMoments),
    DrawnMoments: _of_components(DrawnMoments, seed=0, run=1),
    Scatter: {
        name: (Unlabelled(N_FEATURES), Scatter(double), None)
        for name, double in (("own", False), ("double", True))
    },
    GramProducts: {
        name: (
            Unlabelled(N_FEATURES),
            GramProducts(RNG.normal(size=(N_FEATURES, m)), shift, not bare, bare),
            None,
        )
        for name, m, shift, bare in (
            ("two", 2, None, False),
            ("shifted", 2, X.mean(axis=0), False),
            ("one", 1, None, False),
            ("bare", 2, None, True),
        )
    },
}


def _statistics(base: type[Statistic] = Statistic) -> Iterator[type[Statistic]]:
    for statistic in base.__subclasses__():
        yield statistic
        yield from _statistics(statistic)


STATISTICS = sorted(
    {
        s
        for s in _statistics()
        if s.__module__.startswith("daskml_dist.") and not inspect.isabstract(s)
    },
    key=lambda s: s.__name__,
)
CASES = [
    pytest.param(*sample, id=f"{statistic.__name__}-{name}")
    for statistic in STATISTICS
    for name, sample in SAMPLES.get(statistic, {}).items()
]


#: What holds the rows, and whose arrays: there are no sparse ones in the standard.
BACKENDS = [
    *(
        pytest.param(np.asarray, partial(StrictBackend, device), id=str(device))
        for device in DEVICES
    ),
    pytest.param(sparse.csr_matrix, EmulatedCupy, id="csr", marks=NEEDS_COMPILER),
    pytest.param(np.asarray, partial(get_backend, "gpu"), id="cupy", marks=pytest.mark.gpu),
    pytest.param(
        sparse.csr_matrix, partial(get_backend, "gpu"), id="cupy-csr", marks=pytest.mark.gpu
    ),
]

#: Dtypes, and whether rows have weights; the default run sees each of these once.
KINDS = [
    pytest.param(
        dtype, weighted, id=f"{np.dtype(dtype).name}-{'weighted' if weighted else 'plain'}",
        marks=() if weighted == (dtype is np.float64) else pytest.mark.slow,
    )
    for dtype in (np.float32, np.float64)
    for weighted in (False, True)
]  # fmt: skip


def _add(
    backend: Backend, model: Any, statistic: Statistic, X: Any, y: Any, weight: Any
) -> tuple[float, Any]:
    """The loss and the sum, on the host."""
    there = [None if array is None else backend.to_device(array) for array in (X, y, weight)]
    out = backend.to_device(np.zeros(statistic.shape(model)))
    rows = BatchRows(backend.rows(there[0], slice(0, N_ROWS)), there[1], there[2])
    if statistic.state is not None:
        rows.state = statistic.state.make(model, rows, backend)
    loss = statistic.add(model, rows, out, backend)
    return float(loss), backend.to_numpy(out)


@pytest.mark.parametrize("statistic", STATISTICS)
def test_each_statistic_has_samples(statistic: type[Statistic]) -> None:
    assert SAMPLES.get(statistic), (
        f"{statistic.__name__} was never seen on a GPU's arrays: add to SAMPLES a dict from names "
        "to (model, statistic, encoded targets)."
    )


@pytest.mark.parametrize(("model", "statistic", "y"), CASES)
def test_each_statistic_travels_as_data(model: Any, statistic: Statistic, y: Any) -> None:
    kinds = question_kinds()
    found = unpack_object(pack_object(statistic, kinds), kinds)
    assert type(found) is type(statistic)
    # Taken apart, since statistics may hold others.
    np.testing.assert_equal(take_apart(found, kinds), take_apart(statistic, kinds))


@pytest.mark.parametrize(("dtype", "weighted"), KINDS)
@pytest.mark.parametrize(("container", "make"), BACKENDS)
@pytest.mark.parametrize(("model", "statistic", "y"), CASES)
def test_sums_are_those_of_the_cpu(
    model: Any,
    statistic: Statistic,
    y: Any,
    container: Any,
    make: Callable[[], Backend],
    dtype: Any,
    weighted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    y = y if y is None or y.dtype != np.float64 else y.astype(dtype)
    given = X.astype(dtype), y, WEIGHT.astype(dtype) if weighted else None
    loss, total = _add(get_backend("cpu"), model, statistic, *given)
    tolerance, backend = 1e-5 if dtype == np.float32 else 1e-12, make()
    given = container(given[0]), *given[1:]
    for few_rows in (False, True):
        if few_rows:
            monkeypatch.setattr(type(backend), "entries_at_once", 7 * N_FEATURES)
            monkeypatch.setattr(moments, "_FEW_ROWS", 1)
        on_gpu, on_gpu_total = _add(backend, model, statistic, *given)
        assert_allclose(on_gpu, loss, rtol=tolerance)
        assert on_gpu_total.dtype == np.float64
        atol = tolerance * np.abs(total).max()
        assert_allclose(on_gpu_total, total, rtol=tolerance, atol=atol)


def test_negative_counts_are_seen() -> None:
    model, statistic = RowsByClass(N_FEATURES, 3), ClassCounts(signed=False)
    _add(StrictBackend(), model, statistic, np.abs(X), CODES, None)
    with pytest.raises(InvalidDataError, match="Negative values"):
        _add(StrictBackend(), model, statistic, X, CODES, None)


def test_sparse_rows_are_asked_alike() -> None:
    """Through the class that the sparse rows of every backend have in common."""
    backend = get_backend("cpu")
    dense = np.where(X > 1, X, 0.0)
    some = backend.rows(sparse.csr_array(dense), np.array([3, 1, 4]))
    assert rows.is_sparse(some)
    assert not rows.is_sparse(dense)
    assert_allclose(rows.as_dense(some), dense[[3, 1, 4]])
    assert_allclose(rows.as_dense(rows.elementwise(np.sqrt, some)), np.sqrt(dense[[3, 1, 4]]))


@pytest.mark.parametrize("blocks", [rows.row_tiles, curvature.curvature_tiles])
def test_a_gpu_takes_many_rows_at_once(blocks: Any) -> None:
    wide = np.zeros((5000, 100))
    assert len(list(blocks(wide, get_backend("cpu")))) > 1
    assert list(blocks(wide, StrictBackend())) == [slice(0, 5000)]
