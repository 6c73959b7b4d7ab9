"""Torch modules with embeddings in a growing table equal modules with dense embeddings."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.base import clone

import daskml_dist
from daskml_dist import Run
from daskml_dist.backends.id_hashing import field_ids
from daskml_dist.callbacks import Checkpoint
from daskml_dist.errors import (
    CheckpointError,
    DaskMLDistError,
    InvalidDataError,
    InvalidParameterError,
)
from daskml_dist.inference import Predictor
from daskml_dist.neural_network import GrowingEmbeddings, TorchClassifier, TorchRegressor
from daskml_dist.parameters.checks import seed_of
from daskml_dist.policies import AllReduce, Asynchronous, PolicyByPart
from daskml_dist.ps.growing_shard import look_up_rows

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn

N_ROWS, N_ITEMS, N_TAGS = 600, 40, 9
BY_PART = {"embeddings": "async", "dense": "allreduce"}


@cache
def make_net() -> Any:
    """Return a local class over vectors of two items, a bag of tags and a number."""

    class Clicks(nn.Module):
        def __init__(self, width: int = 4, mode: str = "mean", n_out: int = 1) -> None:
            super().__init__()
            self.item = nn.Embedding(1, width)
            self.tag = nn.EmbeddingBag(1, 3, mode=mode)
            self.hidden = nn.Linear(2 * width + 4, 8)
            self.out = nn.Linear(8, n_out)

        def forward(self, item: Any, last: Any, tags: Any, age: Any) -> Any:
            vectors = [self.item(item), self.item(last), self.tag(tags), age[:, None]]
            return self.out(self.hidden(torch.cat(vectors, dim=1)).tanh())

    return Clicks


def make_clicks(**options: Any) -> Any:
    """Function of this module, which is pickled by name."""
    return make_net()(**options)


EMBEDDINGS = {"item": ["item", "last"], "tag": "tags"}


def _table(as_text: bool = False) -> tuple[pd.DataFrame, Any]:
    """Return two items, which together determine the label, bags of tags, and an age."""
    rng = np.random.default_rng(0)
    items, last = rng.integers(N_ITEMS, size=(2, N_ROWS))
    frame = pd.DataFrame({"item": items, "last": last})
    lengths = rng.integers(4, size=N_ROWS)
    frame["tags"] = [rng.integers(N_TAGS, size=n).tolist() for n in lengths]
    frame["age"] = rng.random(N_ROWS)
    y = items % 2 == last % 2
    if as_text:
        frame[["item", "last"]] = frame[["item", "last"]].map("item {}".format)
        frame["tags"] = [[f"tag {i}" for i in tags] for tags in frame["tags"]]
    return frame, y


def _lazy(frame: pd.DataFrame, y: Any, n: int = 3) -> tuple[Any, Any]:
    with dask.config.set({"dataframe.convert-string": False}):  # lists would become strings
        table = dd.from_pandas(frame.assign(label=y), npartitions=n, sort=False)
        return table.drop(columns="label"), table["label"]


def _classifier(module: Any = None, **params: Any) -> TorchClassifier:
    defaults: dict[str, Any] = {
        "embeddings": EMBEDDINGS, "learning_rate": 0.01, "max_iter": 3, "batch_size": 50,
        "random_state": 0, "run": Run(deterministic=True),
    }  # fmt: skip
    return TorchClassifier(module or make_net(), **defaults | params)


def _rows_of(model: Any, ids: Any, part: int, first: bool = False) -> Any:
    """Return the final or initial rows of ids of a part."""
    numbers = field_ids(np.asarray(ids), part)
    order = np.argsort(numbers)
    known, w = model._learned_ids, model._w
    if first:
        known, w = known[:0], w[:0]
    found = np.empty((len(numbers), w.shape[1]), w.dtype)
    found[order] = look_up_rows(numbers[order], known, w, model._net.table)
    return found[:, : model._net.widths[part]]


def _assert_same(first: Any, second: Any) -> None:
    np.testing.assert_array_equal(first._learned_ids, second._learned_ids)
    np.testing.assert_array_equal(first._w, second._w)


class _Dense:
    """The same module with dense torch embeddings initialised by the table's rows."""

    def __init__(self, model: Any, mode: str) -> None:
        torch.manual_seed(seed_of(0))
        self.net = make_net()(mode=mode).double()
        for name, n, part in (("item", N_ITEMS, 0), ("tag", N_TAGS, 1)):
            begun = torch.from_numpy(_rows_of(model, np.arange(n), part, first=True))
            getattr(self.net, name).weight = nn.Parameter(begun)
        frame, y = _table()
        self._columns = [torch.tensor(frame[n].to_numpy()) for n in ("item", "last", "age")]
        self._lengths = np.array([len(tags) for tags in frame["tags"]])
        self._tags = torch.tensor([tag for tags in frame["tags"] for tag in tags])
        self._y = torch.from_numpy(y).double()

    def output(self) -> Any:
        items, last, age = self._columns
        starts = torch.from_numpy(np.cumsum(self._lengths) - self._lengths)
        bags = self.net.tag(self._tags, starts)
        vectors = [self.net.item(items), self.net.item(last), bags, age[:, None]]
        return self.net.out(self.net.hidden(torch.cat(vectors, dim=1)).tanh())[:, 0]

    def descend(self, optimizer: Any, n_steps: int) -> None:
        for _ in range(n_steps):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(self.output(), self._y).backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("optimizer", "rate", "mode"), [("sgd", 0.5, "sum"), ("adam", 0.01, "mean")]
)
@pytest.mark.parametrize("policy", ["allreduce", BY_PART])
def test_full_batches_equal_steps_of_torch(
    optimizer: str, rate: float, mode: str, policy: Any
) -> None:
    """20 steps in float64; columns share a part, and bags have duplicate ids or none."""
    X, y = _table()
    model = _classifier(
        module__mode=mode, optimizer=optimizer, learning_rate=rate, batch_size=None, max_iter=20,
        dtype="float64", policy=policy, run=Run(n_lanes=1),
    ).fit(X, y)  # fmt: skip
    truth = _Dense(model, mode)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    truth.descend(kind(truth.net.parameters(), lr=rate), 20)
    tolerances: dict[str, float] = {"rtol": 0, "atol": 1e-12}
    for name, n, part in (("item", N_ITEMS, 0), ("tag", N_TAGS, 1)):
        theirs = getattr(truth.net, name).weight.detach().numpy()
        np.testing.assert_allclose(_rows_of(model, np.arange(n), part), theirs, **tolerances)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, truth.net.state_dict()[name], **tolerances, msg=name)
    with torch.no_grad():
        proba = truth.output().sigmoid().numpy()
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], proba, **tolerances)


@pytest.mark.parametrize("as_text", [False, True])
def test_pairs_of_ids_are_learned(as_text: bool) -> None:
    X, y = _table(as_text)
    often = GrowingEmbeddings(EMBEDDINGS, init_scale=0.3)
    model = _classifier(max_iter=60, learning_rate=0.05, embeddings=often).fit(X, y)
    assert model.score(X, y) > 0.95
    assert model.fields_ == list(X)
    kinds = ["text", "text", "texts"] if as_text else ["integer", "integer", "integers"]
    assert model.kinds_ == [*kinds, "numeric"]
    assert model.n_features_in_ == 4
    # One row for an item in either of the two columns, and one for a tag.
    ids = model._learned_ids & 255
    assert np.bincount(ids)[:2].tolist() == [N_ITEMS, N_TAGS]


def test_a_regressor_may_have_tables() -> None:
    X, y = _table()
    model = TorchRegressor(
        make_net(), embeddings=EMBEDDINGS, learning_rate=0.02, max_iter=60, batch_size=50,
        random_state=0,
    ).fit(X, y.astype(float))  # fmt: skip
    assert model.score(X, y.astype(float)) > 0.8


def test_lock_step_fits_do_not_depend_on_the_servers(client: Client) -> None:
    X, y = _table()
    lazy = _lazy(X, y)
    fits = [
        _classifier(
            run=Run(n_lanes=3, n_servers=n_servers, deterministic=True), policy=policy
        ).fit(*lazy, client=where)
        for n_servers, where, policy in (
            (1, client, "sync"), (2, client, "allreduce"), (1, None, "sync"),
        )
    ]  # fmt: skip
    for other in fits[1:]:
        _assert_same(other, fits[0])
    found = fits[0].predict_proba(lazy[0])
    assert found.dask
    # The order of sums in BLAS depends on the number of rows, which is smaller in blocks.
    np.testing.assert_allclose(found.compute(), fits[0].predict_proba(X), rtol=1e-5)
    assert fits[0].score(*lazy) == fits[0].score(X, y)
    # Only rows of the ids of each batch, and the layers, were pulled and pushed.
    record, model = fits[0].history_.records[-1], fits[0]._net
    n_own = len(model.own_ids)
    most = N_ROWS * 5 + (N_ROWS // 50 + 3) * 3 * n_own
    assert record["bytes_pushed"] < most * (8 + 4 * 4) * 1.3


@pytest.mark.parametrize(
    "policy",
    [BY_PART, PolicyByPart(Asynchronous(), AllReduce(), dense_optimizer="adam", dense_rate=0.02)],
)
def test_a_policy_for_each_part(client: Client, policy: Any) -> None:
    X, y = _table()
    model = _classifier(
        max_iter=200, policy=policy, run=Run(n_lanes=2, n_servers=2), optimizer="adagrad",
        learning_rate=0.1, embeddings=GrowingEmbeddings(EMBEDDINGS, init_scale=0.3),
    ).fit(*_lazy(X, y), client=client)  # fmt: skip
    assert model.score(X, y) > 0.9
    assert "staleness_max" in model.history_.records[-1]


def test_continued_fits_equal_one_fit(tmp_path: Any) -> None:
    X, y = _table()
    params: dict[str, Any] = {"batch_size": None, "dtype": "float64"}
    whole = _classifier(max_iter=6, **params).fit(X, y)
    parts = _classifier(make_clicks, max_iter=3, warm_start=True, **params).fit(X, y).fit(X, y)
    _assert_same(parts, whole)
    unpickled = pickle.loads(pickle.dumps(parts))
    _assert_same(unpickled.fit(X, y), _classifier(max_iter=9, **params).fit(X, y))
    place = Checkpoint(tmp_path / "fit.npz")
    saved = _classifier(max_iter=3, checkpoint=place, **params).fit(X, y)
    _assert_same(saved.set_params(max_iter=6).fit(X, y), whole)
    with pytest.raises(InvalidParameterError, match="other parts, shapes or columns"):
        parts.set_params(module__width=5).fit(X, y)
    with pytest.raises(InvalidParameterError, match="the embeddings of the last fit"):
        parts.set_params(embeddings=None).fit(X, y)


def test_partial_fit_adds_new_ids() -> None:
    X, y = _table()
    model = _classifier()
    for at in range(0, N_ROWS, 200):
        rows = X[at : at + 200]
        model.partial_fit(rows, y[at : at + 200], classes=[False, True])
        ids_so_far = pd.concat([X["item"], X["last"]])[lambda s, at=at: s.index < at + 200]
        assert np.sum(model._learned_ids & 255 == 0) == ids_so_far.nunique()
    # Rows of unseen ids have their initial values; a call keeps the table.
    new = X[:5].assign(item=range(10**12, 10**12 + 5))
    proba = model.predict_proba(new)
    assert len(np.unique(proba[:, 1])) == 5
    np.testing.assert_array_equal(model.predict_proba(new), proba)


@pytest.mark.parametrize("where", ["inline", "cluster"])
def test_a_stream_of_tables(tmp_path: Any, where: str, client: Client) -> None:
    """Equals steps of `partial_fit`, also after resuming from a file."""
    X, y = _table()
    params: dict[str, Any] = {"shuffle": False, "dtype": "float64", "max_iter": 1}
    if where == "cluster":
        params["run"] = Run(n_lanes=1, n_servers=1, deterministic=True)
    options = {"client": client if where == "cluster" else None}
    ours, theirs = _classifier(**params), _classifier(**params)
    place = Checkpoint(tmp_path / "stream.npz", every=1)
    with ours.stream(classes=[False, True], checkpoint=place, **options) as stream:
        for at in range(0, 300, 50):
            stream.learn(X[at : at + 50], y[at : at + 50])
            theirs.partial_fit(X[at : at + 50], y[at : at + 50], classes=[False, True])
    # torch may sum in another order if arrays have other alignments.
    np.testing.assert_array_equal(ours._learned_ids, theirs._learned_ids)
    np.testing.assert_allclose(ours._w, theirs._w, rtol=1e-9, atol=1e-12)
    resumed = _classifier(**params)
    place = Checkpoint(tmp_path / "stream.npz", every=100, resume=True)
    with resumed.stream(classes=[False, True], checkpoint=place, **options) as stream:
        for at in range(300, N_ROWS, 50):
            stream.learn(X[at : at + 50], y[at : at + 50])
            theirs.partial_fit(X[at : at + 50], y[at : at + 50])
    np.testing.assert_array_equal(resumed._learned_ids, theirs._learned_ids)
    np.testing.assert_allclose(resumed._w, theirs._w, rtol=1e-9, atol=1e-12)
    assert list(resumed.feature_names_in_) == list(X.columns)
    np.testing.assert_allclose(resumed.predict_proba(X), theirs.predict_proba(X), rtol=1e-9)


def test_a_stream_of_another_module_is_not_resumed(tmp_path: Any) -> None:
    X, y = _table()
    path = tmp_path / "stream.npz"
    with _classifier().stream(classes=[False, True], checkpoint=Checkpoint(path)) as stream:
        stream.learn(X[:50], y[:50])
    place = Checkpoint(path, resume=True)
    with (
        pytest.raises(CheckpointError),
        _classifier(module__width=5).stream(classes=[False, True], checkpoint=place) as stream,
    ):
        stream.learn(X[:50], y[:50])


@pytest.mark.parametrize("suffix", ["safetensors", "pickle"])
def test_a_saved_model_reads_tables(tmp_path: Any, suffix: str) -> None:
    X, y = _table()
    model = _classifier(make_clicks).fit(X, y)
    if suffix == "pickle":
        loaded = pickle.loads(pickle.dumps(model))
    else:
        pytest.importorskip("safetensors")
        path = tmp_path / f"clicks.{suffix}"
        model.save(path)
        loaded = daskml_dist.load(path, module=make_net())
        with pytest.raises(DaskMLDistError, match="differs from the module"):
            daskml_dist.load(path, module=_normed())
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(Predictor(loaded)(X[:3]), model.predict_proba(X[:3]))
    assert loaded.module_.out.weight.shape == (1, 8)
    loaded.set_params(warm_start=True).fit(X, y)
    model.set_params(warm_start=True).fit(X, y)
    _assert_same(loaded, model)


def test_layers_can_be_read_and_written(tmp_path: Any) -> None:
    X, y = _table()
    model = _classifier(layer="hidden").fit(X, y)
    hidden = model.transform(X)
    assert hidden.shape == (N_ROWS, 8)
    weights = model.state_dict()
    assert sorted(weights) == ["hidden.bias", "hidden.weight", "out.bias", "out.weight"]
    raw = np.tanh(hidden) @ weights["out.weight"].numpy()[0] + weights["out.bias"].numpy()
    np.testing.assert_allclose(raw > 0, model.predict(X))
    with pytest.raises(InvalidParameterError, match="no rows of its own"):
        model.module_.item(torch.tensor([1]))
    with pytest.raises(InvalidParameterError, match="in a table"):
        model.export(tmp_path / "m.onnx")
    twin = clone(model)
    assert twin.embeddings == EMBEDDINGS


@cache
def _without_layers() -> Any:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item = nn.Embedding(1, 4), nn.Embedding(1, 4)

        def forward(self, item: Any, last: Any) -> Any:
            return (self.user(item) * self.item(last)).sum(dim=1)

    return Product


def test_a_module_may_be_embeddings_alone(tmp_path: Any) -> None:
    X, y = _table()
    model = _classifier(
        _without_layers(), embeddings={"user": "item", "item": "last"},
        inputs={"item": "item", "last": "last"}, learning_rate=0.1, max_iter=40,
    ).fit(X, y)  # fmt: skip
    assert model.score(X, y) > 0.95
    assert model.predict(X.drop(columns=["tags", "age"]).assign(tags=0, age="")).shape == (N_ROWS,)
    with pytest.raises(InvalidParameterError, match="layers or an intercept"):
        clone(model).set_params(policy=BY_PART).fit(X, y)


def test_whole_numbers_and_several_columns_are_arguments() -> None:
    @cache
    def make() -> Any:
        class Sides(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.item, self.hour = nn.Embedding(1, 4), nn.Embedding(24, 2)
                self.out = nn.Linear(2 * 4 + 2 + 2, 3)

            def forward(self, items: Any, hour: Any, numbers: Any) -> Any:
                assert items.shape == (len(hour), 2)
                assert items.dtype == hour.dtype == torch.int64
                vectors = [self.item(items).flatten(1), self.hour(hour), numbers]
                return self.out(torch.cat(vectors, dim=1))

        return Sides

    X, _ = _table()
    X["hour"], X["size"] = X["item"] % 24, X["age"] * 2
    y = X["hour"] % 3
    inputs = {"items": ["item", "last"], "hour": "hour", "numbers": ["age", "size"]}
    model = _classifier(
        make(), embeddings={"item": ["item", "last"]}, inputs=inputs, max_iter=100,
        learning_rate=0.05,
    ).fit(X, y)  # fmt: skip
    assert model.score(X, y) > 0.9
    assert model.kinds_ == ["integer", "integer", "numeric", "numeric", "numeric"]
    with pytest.raises(InvalidDataError, match=r"2\*\*24 or more"):
        model.predict(X.assign(hour=2**25))


def test_missing_ids_have_a_separate_row() -> None:
    X, y = _table()
    X = X.astype({"item": "Int64"})
    X.loc[::7, "item"] = None
    embeddings = GrowingEmbeddings(EMBEDDINGS, missing="own")
    model = _classifier(embeddings=embeddings).fit(X, y)
    assert np.sum(model._learned_ids & 255 == 0) == N_ITEMS + 1
    with pytest.raises(InvalidDataError, match="missing='own'"):
        _classifier().fit(X, y)
    X.loc[3, "age"] = np.nan
    with pytest.raises(InvalidDataError, match="fillna"):
        _classifier(embeddings=embeddings).fit(X, y)


def test_ids_are_admitted_and_evicted() -> None:
    X, y = _table()
    params: dict[str, Any] = {"max_iter": 1, "shuffle": False}
    often = GrowingEmbeddings(EMBEDDINGS, admit_after=3)
    model = _classifier(embeddings=often, **params).fit(X, y)
    n_batches = np.zeros(N_ITEMS, int)
    for at in range(0, N_ROWS, 50):
        n_batches[np.unique(X[["item", "last"]][at : at + 50])] += 1
    expected = field_ids(np.flatnonzero(n_batches >= 3), 0)
    assert set(expected) == set(model._learned_ids[model._learned_ids & 255 == 0])


def _swapped() -> Any:
    class Swapped(make_net()):  # type: ignore[misc]
        def forward(self, item: Any, last: Any, tags: Any, age: Any) -> Any:
            return self.out(self.item(tags[:, 0]).sum(dim=1, keepdim=True).expand(-1, 8))

    return Swapped


def _unused() -> Any:
    class Unused(make_net()):  # type: ignore[misc]
        def forward(self, item: Any, last: Any, tags: Any, age: Any) -> Any:
            vectors = self.item(item), self.item(last), age[:, None].expand(-1, 4)
            return self.out(self.hidden(torch.cat(vectors, dim=1)).tanh())

    return Unused


def _tied() -> Any:
    class Tied(make_net()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.other = nn.Embedding(1, 4)
            self.other.weight = self.item.weight

    return Tied


def _normed() -> Any:
    class Normed(make_net()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)  # unused in the forward pass, but kept

    return Normed


def _bounded() -> Any:
    class Bounded(make_net()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.item = nn.Embedding(1, 4, max_norm=1.0)

    return Bounded


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"embeddings": "item"}, "name the columns of ids"),
        ({"embeddings": {}}, "name the columns of ids"),
        ({"embeddings": {"item": "item", "tag": ["tags", "item"]}}, "'item' twice"),
        ({"embeddings": {"items": ["item", "last"], "tag": "tags"}}, "named 'items'"),
        ({"embeddings": {"out": "item", "item": "last", "tag": "tags"}}, "no nn.Embedding"),
        ({"embeddings": {"item": ["item", "lasst"], "tag": "tags"}}, "no column 'lasst'"),
        ({"embeddings": {"item": ["item", "tags", "last"]}}, "whose order is not kept"),
        ({"embeddings": {"item": ["item", "last"]}}, "is of kind integers"),
        ({"embeddings": GrowingEmbeddings(EMBEDDINGS, missing="drop")}, "missing"),
        ({"embeddings": GrowingEmbeddings(EMBEDDINGS, admit_after=0)}, "admit_after"),
        ({"embeddings": GrowingEmbeddings(EMBEDDINGS, init_scale=-1)}, "init_scale"),
        ({"inputs": {"item": "item", "last": "last", "age": "age"}}, "not arguments"),
        ({"inputs": {"item": ["item", "age"], "last": "last", "tags": "tags"}}, "mixes kinds"),
        ({"policy": "local"}, "needs all parameters"), ({"policy": "hogwild"}, "needs all"),
        ({"clip": 1.0}, "clip"), ({"groups": {"*": {"rate": 2.0}}}, "groups"),
        ({"micro_batch_size": 8}, "micro_batch_size"), ({"precision": "fp16"}, "fp16"),
        ({"device": "gpu"}, "gpu"), ({"early_stopping": True}, "early_stopping"),
        ({"average": True}, "average"), ({"images": "channels_last"}, "images"),
        ({"optimizer": "row_wise_adagrad"}, "one number per row"),
    ],
)  # fmt: skip
def test_unsupported_settings_of_a_table_are_refused(params: dict[str, Any], match: str) -> None:
    with pytest.raises((InvalidParameterError, InvalidDataError), match=match):
        _classifier(**params).fit(*_table())


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (_swapped, "do not depend on"), (_unused, "do not depend on"), (_tied, "elsewhere"),
        (_normed, "LayerNorm"), (_bounded, "max_norm"),
    ],
)  # fmt: skip
def test_modules_without_lookups_are_refused(make: Any, match: str) -> None:
    with pytest.raises(InvalidParameterError, match=match):
        _classifier(make()).fit(*_table())


def test_ids_of_another_part_are_refused() -> None:
    X, y = _table()
    with pytest.raises(InvalidParameterError, match="different part"):
        _classifier(
            _without_layers(), embeddings={"user": "last", "item": "item"},
            inputs={"item": "item", "last": "last"},
        ).fit(X, y)  # fmt: skip


def test_bad_rows_name_the_remedy() -> None:
    X, y = _table()
    with pytest.raises(InvalidDataError, match="dataframe"):
        _classifier().fit(X[["item", "last", "age"]].to_numpy(), y)
    with pytest.raises(InvalidDataError, match="cannot be negative"):
        _classifier().fit(X.assign(item=-1), y)
    with pytest.raises(InvalidDataError, match="never equal"):
        _classifier().fit(X.assign(last=X["last"].astype(str)), y)
    with pytest.raises(InvalidParameterError, match="is an instance"):
        _classifier(make_net()(), warm_start=True).fit(X, y)
    model = _classifier().fit(X, y)
    with pytest.raises(InvalidDataError, match=r"'item' is of kind text, but in the fit"):
        model.predict(X.assign(item=X["item"].astype(str)))
    with pytest.raises(InvalidDataError, match=r"features|names"):
        model.predict(X.drop(columns="age"))
