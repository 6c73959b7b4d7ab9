"""Fitted tables as lazy frames and files, and tables in mapped files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

from daskml_dist import Run
from daskml_dist.backends.id_hashing import field_ids
from daskml_dist.errors import InvalidParameterError, NotFittedError
from daskml_dist.recommender import DeepFMClassifier, FactorizationMachineClassifier
from tests.recommender.test_embeddings import _lazy, _numbers, _rows


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Dask's, about the index
def test_a_fitted_table_is_a_lazy_frame(tmp_path: Path) -> None:
    import dask.dataframe as dd

    clf = FactorizationMachineClassifier(rank=3, random_state=0, max_iter=1).fit(*_rows())
    frame = clf.as_frame(partition_rows=100)
    assert list(frame.columns) == ["field", "weight", "factor_0", "factor_1", "factor_2"]
    assert frame.npartitions == -(-len(clf.ids_) // 100)
    assert frame.known_divisions
    frame.to_parquet(tmp_path / "table")
    for found in (frame.compute(), dd.read_parquet(tmp_path / "table").compute()):
        np.testing.assert_array_equal(found.index, clf.ids_)
        np.testing.assert_array_equal(found["weight"], clf.weights_)
        np.testing.assert_array_equal(found.filter(like="factor"), clf.vectors_)
    id_of_field = field_ids(np.array([7]), 0)[0]
    assert len(frame.loc[id_of_field:id_of_field].compute()) == (id_of_field in clf.ids_)


def test_weights_of_layers_are_not_in_the_frame() -> None:
    clf = DeepFMClassifier(random_state=0, max_iter=1).fit(*_numbers())
    assert sorted(clf.as_frame().compute()["field"]) == [0, 1, 2]


def test_frames_of_unfitted_models_are_refused() -> None:
    with pytest.raises(NotFittedError):
        FactorizationMachineClassifier().as_frame()
    clf = FactorizationMachineClassifier(random_state=0, max_iter=1).fit(*_rows())
    with pytest.raises(InvalidParameterError, match="partition_rows"):
        clf.as_frame(partition_rows=0)


def test_tensors_have_the_names_of_attributes(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    clf = FactorizationMachineClassifier(random_state=0, max_iter=1).fit(*_rows())
    clf.save(tmp_path / "table.safetensors")
    found = safetensors.load_file(tmp_path / "table.safetensors")
    for name in ("ids_", "weights_", "vectors_"):
        np.testing.assert_array_equal(found[name], getattr(clf, name))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rows_beyond_the_budget_are_in_files(client: Client, tmp_path: Path) -> None:
    """In Dask's folder, with the same bits as a table in memory."""
    X, y = _lazy(*_rows())
    params: dict[str, Any] = {"random_state": 0, "batch_size": 50, "max_iter": 2}
    maps: list[str] = []

    class Look:
        def on_pass_end(self, run: Any, record: Any) -> None:
            maps.extend(client.run(lambda: Path("/proc/self/maps").read_text()).values())

    with dask.config.set({"temporary-directory": str(tmp_path)}):
        client.run(lambda: dask.config.set({"temporary-directory": str(tmp_path)}))
        small = FactorizationMachineClassifier(
            **params, run=Run(n_lanes=2, n_servers=2, memory_budget=100_000), callbacks=[Look()]
        ).fit(X, y, client=client)
        client.run(lambda: dask.config.set({"temporary-directory": None}))
    assert any(str(tmp_path) in text for text in maps)
    large = FactorizationMachineClassifier(**params, run=Run(n_lanes=2, n_servers=2)).fit(
        X, y, client=client
    )
    np.testing.assert_array_equal(small.ids_, large.ids_)
    np.testing.assert_array_equal(small.vectors_, large.vectors_)
