"""The public interface of the PyTorch estimators: inputs, results, refusals."""

from __future__ import annotations

import importlib.util
import pickle
import threading
from functools import cache, partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from daskml_dist import Run, model_selection
from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.ensemble import StackingClassifier
from daskml_dist.errors import (
    DaskMLDistError,
    DeviceUnavailableError,
    DivergedError,
    InvalidDataError,
    InvalidParameterError,
)
from daskml_dist.neural_network import TorchClassifier, TorchRegressor
from daskml_dist.optimizers import AdamW

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn


@cache
def make_net() -> Any:
    class Net(nn.Module):
        def __init__(self, n_in: int = 6, hidden: int = 16, n_out: int = 3) -> None:
            super().__init__()
            self.first = nn.Linear(n_in, hidden)
            self.last = nn.Linear(hidden, n_out)

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x).relu())

    return Net


@cache
def rows() -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(600, 6)).astype(np.float32)
    return X, np.digitize(X[:, 0] + X[:, 1], [-0.6, 0.6])


def classifier(module: Any = None, **params: Any) -> Any:
    # One thread: OpenMP threads wait long for each other on a busy machine.
    defaults = {"learning_rate": 0.02, "max_iter": 8, "batch_size": 50, "random_state": 0}
    defaults["run"] = Run(deterministic=True)
    return TorchClassifier(module or make_net(), **defaults | params)


def test_module_parameters_are_estimator_parameters() -> None:
    clf = classifier(
        module__hidden=4, criterion=nn.CrossEntropyLoss, criterion__label_smoothing=0.1
    )
    assert clf.get_params()["module__hidden"] == 4
    before = torch.get_rng_state()
    twin = clone(clf.set_params(module__hidden=8, run__n_lanes=2)).fit(*rows())
    assert torch.equal(before, torch.get_rng_state())
    assert twin.module_.first.weight.shape == (8, 6)
    assert twin.score(*rows()) > 0.9
    unpickled = pickle.loads(pickle.dumps(classifier(_plain, module__hidden=5).fit(*rows())))
    assert unpickled.predict_proba(rows()[0]).sum(axis=1) == pytest.approx(np.ones(600), abs=1e-5)
    assert cross_val_score(classifier(max_iter=3), *rows(), cv=2).min() > 0.6


def _plain(hidden: int, n_out: int = 3) -> Any:
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, n_out))


def test_lazy_rows_give_lazy_results(client: Client) -> None:
    X, y = rows()
    lazy = da.from_array(X, chunks=(150, 6))
    found = classifier(run=Run(n_lanes=2)).fit(lazy, da.from_array(y, chunks=150))
    for make in (found.predict, found.predict_proba, lambda X: found.transform(X, "first")):
        assert isinstance(make(lazy), da.Array)
        np.testing.assert_allclose(make(lazy).compute(), make(X), rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        first = found.module_.first(torch.from_numpy(X))
    np.testing.assert_allclose(found.transform(X, "first"), first.numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidParameterError, match="layers are"):
        found.transform(X, "second")


def test_criteria_of_two_classes_agree() -> None:
    X, y = rows()[0], np.where(rows()[1] > 1, "yes", "no")
    one = classifier(module__n_out=1).fit(X, y)
    named = classifier(module__n_out=1, criterion=nn.BCEWithLogitsLoss).fit(X, y)
    np.testing.assert_array_equal(one.predict_proba(X), named.predict_proba(X))
    two = classifier(module__n_out=2, criterion=nn.CrossEntropyLoss()).fit(X, y)
    for found in (one, two):
        proba = found.predict_proba(X)
        np.testing.assert_array_equal(found.predict(X), found.classes_[(proba[:, 1] > 0.5) * 1])
        assert found.score(X, y) > 0.95
    several = np.stack([y == "yes", X[:, 2] > 0], axis=1).astype(int)
    both = classifier(module__n_out=2, max_iter=15).fit(X, several)
    assert both.predict(X).shape == (600, 2)
    assert both.score(X, several) > 0.85


def test_regression_of_one_target_and_several() -> None:
    X = rows()[0]
    targets = np.stack([X[:, 0] * X[:, 1], X[:, 2]], axis=1)
    params = {"learning_rate": 0.02, "max_iter": 40, "batch_size": 50, "random_state": 0}
    for y, n_out in ((targets[:, 0], 1), (targets, 2)):
        found = TorchRegressor(make_net(), module__n_out=n_out, **params).fit(X, y)
        assert found.predict(X).shape == y.shape
        assert found.score(X, y) > 0.85


def test_columns_of_a_frame_are_inputs() -> None:
    pd = pytest.importorskip("pandas")

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(5, 4), nn.Linear(5, 3)

        def forward(self, tokens: Any, size: Any) -> Any:
            assert tokens.dtype == torch.int64
            return self.out(torch.cat([self.words(tokens).mean(dim=1), size[:, None]], dim=1))

    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(5, size=(300, 3)), columns=["a", "b", "c"])
    frame = frame.assign(size=rng.normal(size=300), label=(frame["a"] + frame["b"]) // 3)
    clf = classifier(Two, inputs={"tokens": ["a", "b", "c"], "size": "size"}, max_iter=40)
    assert clf.fit(frame, y="label").score(frame, y="label") > 0.6
    with pytest.raises(InvalidParameterError, match=r"names \['d'\]"):
        classifier(Two, inputs={"tokens": ["a", "d"]}).fit(frame, y="label")


def test_images_are_split_searched_and_stacked() -> None:
    X = np.random.default_rng(0).normal(size=(60, 1, 2, 3)).astype(np.float32)
    y = (X.mean(axis=(1, 2, 3)) > 0).astype(int)
    rows, labels = da.from_array(X, chunks=(20, 1, 1, 3)), da.from_array(y, chunks=20)
    net = classifier(_of_images, max_iter=2)
    with dask.config.set(scheduler="sync"):
        scores = model_selection.cross_val_score(net, rows, labels, cv=2)
        expected = [
            clone(net).fit(*train).score(*test)
            for train, test in _halves(model_selection.KFold(2), rows, labels)
        ]
        folded = model_selection.cross_val_score(net, rows, labels, cv=model_selection.KFold(2))
        grid = model_selection.GridSearchCV(net, {"learning_rate": [0.02, 0.1]}, cv=2)
        stack = StackingClassifier([("a", net)], net.__class__(_of_logits, max_iter=1), cv=2)
        calibrated = CalibratedClassifierCV(net, cv=2)
        for search in (grid, stack, calibrated):
            assert search.fit(rows, labels).predict(rows).shape == (60,)
    assert scores.shape == (2,)
    np.testing.assert_allclose(folded, expected)


def _halves(splitter: Any, rows: Any, labels: Any) -> Any:
    for train, test in splitter.split(rows, labels):
        yield (rows[train], labels[train]), (rows[test], labels[test])


def _of_images() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 2))


def _of_logits() -> Any:
    return nn.Linear(1, 2)


def test_groups_schedules_and_tokens() -> None:
    X = np.random.default_rng(0).integers(7, size=(400, 5), dtype=np.int32)
    clf = classifier(
        lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, 3)),
        optimizer=AdamW(weight_decay=0.1), schedule="cosine", clip=1.0, micro_batch_size=20,
        groups={"*.bias": dict(weight_decay=0), "0.*": dict(rate=0.0)},
    )  # fmt: skip
    clf.fit(X, X[:, 0] % 3)
    assert clf.score(X, X[:, 0] % 3) > 0.7
    with pytest.raises(InvalidParameterError, match=r"sets \['decay'\]"):
        classifier(groups={"*.bias": dict(decay=0)}).fit(*rows())


def test_micro_batches_are_even_and_of_rows_of_all_blocks(client: Client) -> None:
    class Counts(make_net()):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            assert not self.training or 16 <= len(x) <= 20, len(x)
            return super().forward(x)

    X, y = rows()
    arguments = da.from_array(X, chunks=(30, 6)), da.from_array(y, chunks=30)
    whole, cut = (
        classifier(module, batch_size=100, micro_batch_size=micro, run=Run(n_lanes=2)).fit(
            *arguments
        )
        for module, micro in ((None, None), (Counts, 20))
    )
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(cut.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_whole_numbers_are_numbers_where_the_fit_had_floats(client: Client) -> None:
    X, y = rows()
    clf = classifier(max_iter=1).fit(X, y)
    whole = X.round()
    expected = clf.predict_proba(whole)
    for kind in (np.int64, np.int8):
        given = whole.astype(kind)
        np.testing.assert_array_equal(clf.predict_proba(given), expected)
        np.testing.assert_array_equal(clf.predict_proba(da.from_array(given)), expected)
    with pytest.raises(InvalidParameterError, match=r"may be tokens.*astype\('float32'\)"):
        classifier().fit(whole.astype(int), y)


def test_fits_continue() -> None:
    X, y = rows()
    clf = classifier(max_iter=2, warm_start=True).fit(X, y)
    before = clf.history_.records[-1]["loss"]
    assert clf.fit(X, y).history_.records[-1]["loss"] < before
    with pytest.raises(InvalidParameterError, match=r"weight of shape \(9, 6\) was \(16, 6\)"):
        clf.set_params(module__hidden=9).fit(X, y)
    parts = classifier().partial_fit(X[:300], y[:300], classes=[0, 1, 2])
    assert parts.partial_fit(X[300:], y[300:]).t_ == 600
    net = make_net()()
    begun = {name: value.clone() for name, value in net.state_dict().items()}
    still = classifier(net, warm_start=True, groups={"*": dict(rate=0.0)}).fit(X, y)
    assert all(torch.equal(value, begun[name]) for name, value in still.state_dict().items())


def _bad(what: str) -> Any:
    """Return an invalid module."""
    net = make_net()

    class Bad(net):  # type: ignore[misc, valid-type]
        lock = threading.Lock() if what == "lock" else None

        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)
            self.own = threading.Lock() if what == "own lock" else None
            if what == "complex":
                self.wave = nn.Parameter(torch.zeros(2, dtype=torch.complex64))

        def forward(self, x: Any) -> Any:
            out = super().forward(x)
            if what == "detached":
                return out.detach()
            if what == "list":
                return [1]
            if what in {"array", "tuple"}:
                return out.detach().numpy() if what == "array" else (out, x)
            if what == "reshaped" and self.training:
                self.last = nn.Linear(16, 3)
            return out.mean(dim=0) if what == "rows" else out

    class Two(net):  # type: ignore[misc, valid-type]
        def forward(self, x: Any, age: Any) -> Any:
            return super().forward(x)

    return Two if what == "two" else Bad


class OwnScale(nn.Module):
    """A criterion with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, output: Any, y: Any) -> Any:
        return nn.functional.cross_entropy(output, y, reduction="none") * self.scale.exp()


def _norms() -> Any:
    return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))


class OwnLogits(nn.BCEWithLogitsLoss):
    """A criterion derived from one of torch."""


def own_loss(output: Any, y: Any) -> Any:
    """Return the loss of logits, of which the name tells nothing."""
    return nn.functional.binary_cross_entropy_with_logits(output, y, reduction="none")


@pytest.mark.parametrize(
    "criterion",
    [
        OwnLogits,
        OwnLogits(),
        partial(nn.functional.binary_cross_entropy_with_logits, reduction="none"),
    ],
)
def test_a_criterion_made_of_a_known_one_reads_outputs_as_it_does(criterion: Any) -> None:
    X, y = rows()[0], (rows()[1] > 1).astype(int)
    expected = classifier(module__n_out=1).fit(X, y)
    found = classifier(module__n_out=1, criterion=criterion).fit(X, y)
    np.testing.assert_array_equal(found.predict_proba(X), expected.predict_proba(X))
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))


def test_a_warning_names_outputs_that_are_no_probabilities() -> None:
    X, y = rows()[0], (rows()[1] > 1).astype(int)
    with pytest.warns(UserWarning, match=r"are no probabilities.*criterion=own_loss.*sigmoid"):
        classifier(module__n_out=1, criterion=own_loss).fit(X, y)
    explicit = classifier(module__n_out=1, criterion=own_loss, predict_nonlinearity=torch.sigmoid)
    expected = classifier(module__n_out=1).fit(X, y)
    np.testing.assert_array_equal(explicit.fit(X, y).predict(X), expected.predict(X))
    classifier(module__n_out=1, criterion=own_loss, predict_nonlinearity=None).fit(X, y)


REFUSED = {
    "too few classes": (lambda: classifier(module__n_out=2), "3 classes. Let its last layer"),
    "other features": (lambda: classifier(module__n_in=5), "module__name=value"),
    "not a module": (lambda: TorchClassifier(), "give a class derived from torch.nn.Module"),
    "an instance": (lambda: classifier(make_net()()), "warm_start=True"),
    "no such argument": (lambda: classifier(module__deep=2), "module__name=value"),
    "a number": (lambda: classifier(lambda: 3), "which is not a module"),
    "no parameters": (lambda: classifier(lambda: nn.Flatten()), "no parameters to train"),
    "a mean": (lambda: classifier(criterion=lambda o, y: o.mean()), 'reduction="none"'),
    "a number for a loss": (lambda: classifier(criterion=lambda o, y: 0.0), "tensor with the loss"),
    "a criterion of three arguments": (
        lambda: classifier(criterion=nn.GaussianNLLLoss),
        "wrap it in a function of these two",
    ),
    "a class of losses to train": (
        lambda: classifier(criterion=OwnScale),
        r"OwnScale has parameters to train \(scale\).*requires_grad_",
    ),
    "a loss to train": (lambda: classifier(criterion=OwnScale()), "parameters to train"),
    "arguments of the default loss": (
        lambda: classifier(criterion__label_smoothing=0.1),
        "criterion=None is not a class, so .*'criterion__label_smoothing'",
    ),
    "arguments of a loss that is made": (
        lambda: classifier(criterion=nn.CrossEntropyLoss(), criterion__label_smoothing=0.1),
        "criterion=torch.nn.CrossEntropyLoss",
    ),
    "numbers for labels": (
        lambda: classifier(criterion=nn.MSELoss),
        "nn.CrossEntropyLoss",
    ),
    "detached": (lambda: classifier(_bad("detached")), "no gradient"),
    "a list": (lambda: classifier(_bad("list")), "returns a list"),
    "an array": (lambda: classifier(_bad("array")), "returns a ndarray"),
    "a tuple": (lambda: classifier(_bad("tuple")), "that accepts a tuple"),
    "complex": (lambda: classifier(_bad("complex")), "separate real and imaginary parts"),
    "a lock in an object": (lambda: classifier(_bad("own lock")(), warm_start=True), "locks"),
    "norms of a row of a micro-batch": (
        lambda: classifier(_norms, batch_size=50, micro_batch_size=1),
        "needs at least two rows per batch, but of micro-batches",
    ),
    "a row": (lambda: classifier(_bad("rows")), "first dimension"),
    "reshaped": (lambda: classifier(_bad("reshaped")), "replaced or reshaped its parameters"),
    "norms of a row": (
        lambda: classifier(_norms, batch_size=1),
        "needs at least two rows per batch",
    ),
    "lazy layer": (lambda: classifier(lambda: nn.LazyLinear(3)), "Give the layer its sizes"),
    "an object with a lazy layer": (
        lambda: classifier(nn.LazyLinear(3), warm_start=True),
        "LazyLinear has a lazy layer.*Give the layer its sizes",
    ),
    "two arguments": (lambda: classifier(_bad("two")), "to arguments"),
    "precision": (lambda: classifier(precision="fp8"), r"use one of \[None, 'bf16', 'fp16'\]"),
    "schedule": (lambda: classifier(schedule="sine"), "use one of"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_incompatible_modules_are_refused(what: str) -> None:
    make, remedy = REFUSED[what]
    with pytest.raises(InvalidParameterError, match=remedy):
        make().fit(*rows())


def test_a_criterion_with_frozen_parameters_is_used() -> None:
    X, y = rows()
    frozen = OwnScale().requires_grad_(False)
    softmax = {"predict_nonlinearity": nn.Softmax(dim=1)}
    np.testing.assert_array_equal(
        classifier(criterion=frozen, **softmax).fit(X, y).predict_proba(X),
        classifier().fit(X, y).predict_proba(X),
    )


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_other_refusals(client: Client) -> None:
    X, y = rows()
    with pytest.raises(InvalidParameterError, match="has no parameter 'modul__hidden'"):
        TorchClassifier(make_net(), modul__hidden=3)
    with pytest.raises(InvalidDataError, match=r"[Cc]ontinuous"):
        classifier().fit(X, X[:, 0])
    with pytest.raises(DeviceUnavailableError, match="'bf16', or None"):
        classifier(precision="fp16", device="cpu").fit(X, y)
    lazy = da.from_array(X, chunks=(150, 6)), da.from_array(y, chunks=150)
    with pytest.raises(InvalidParameterError, match="Use one that accepts labels"):
        classifier(criterion=nn.MSELoss, module__n_out=2).fit(lazy[0], lazy[1] % 2)
    with pytest.raises(InvalidParameterError, match="cannot be sent to workers"):
        classifier(_bad("lock")).fit(*lazy)
    with pytest.raises(InvalidParameterError, match="Rows of bytes are not converted"):
        classifier().fit((X * 20).astype(np.uint8), y)
    # Detected only on the worker: zeros and ones are tokens of this embedding, but 6 is not.
    tokens = classifier(lambda: nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(3, 3)))
    with pytest.raises(DaskMLDistError, match="size of the embedding"):
        tokens.fit(da.from_array(np.arange(600)[:, None] % 7, chunks=(150, 1)), lazy[1])


@pytest.mark.parametrize("is_lazy", [False, True])
def test_rows_that_are_no_images_are_refused(is_lazy: bool) -> None:
    X, y = rows()
    if is_lazy:
        X, y = da.from_array(X, chunks=(200, 6)), da.from_array(y, chunks=200)
    with pytest.raises(InvalidParameterError, match=r"shape \(6,\).*images=None"):
        classifier(images="channels_last").fit(X, y)


def test_a_non_finite_loss_keeps_earlier_parameters(client: Client) -> None:
    class Breaks(make_net()):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return super().forward(x) + torch.where(x.abs().amax() > 1e3, torch.inf, 0.0)

    X, y = rows()[0].copy(), rows()[1]
    X[590, 0] = 2e3
    lazy = da.from_array(X, chunks=(150, 6)), da.from_array(y, chunks=150)
    for data in ((X, y), lazy):
        clf = classifier(Breaks, max_iter=1, shuffle=False, run=Run(n_lanes=1))
        with pytest.raises(DivergedError, match=r"in step 12 of lane 0, .* 50 rows .* 2e\+03"):
            clf.fit(*data)
        assert np.isfinite(clf.predict_proba(X[:500])).all()


def test_bfloat16_trains() -> None:
    assert classifier(precision="bf16").fit(*rows()).score(*rows()) > 0.85


@pytest.mark.parametrize("ending", [".safetensors", ".onnx", ".txt"])
def test_exports_can_be_read_by_other_libraries(tmp_path: Any, ending: str) -> None:
    found, path = classifier(max_iter=1).fit(*rows()), tmp_path / f"m{ending}"
    needed = {".safetensors": ["safetensors"], ".onnx": ["onnx", "onnxscript"]}.get(ending, [])
    if ending == ".txt" or not all(map(importlib.util.find_spec, needed)):
        with pytest.raises(InvalidParameterError, match="pip install" if needed else r"torch.save"):
            found.export(path)
        return
    found.export(path)
    if ending == ".safetensors":
        from safetensors.torch import load_file

        state = found.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in load_file(path).items())
    else:
        import onnx

        assert {"Gemm", "Relu"} <= {node.op_type for node in onnx.load(path).graph.node}
