"""MLflow models, read by MLflow itself and by this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.pipeline import make_pipeline

from daskml_dist.compose import make_column_transformer
from daskml_dist.ensemble import HistGradientBoostingClassifier
from daskml_dist.errors import ModelFileError, NotFittedError
from daskml_dist.inference import mlflow as flavor
from daskml_dist.linear_model import LogisticRegression, Ridge, SGDClassifier
from daskml_dist.neural_network import MLPRegressor
from daskml_dist.preprocessing import OrdinalEncoder, StandardScaler
from daskml_dist.recommender import ALS

X = np.random.default_rng(0).normal(size=(60, 3))
Y = np.where(X[:, 0] > 0, "yes", "no")
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).astype({"b": np.float32})
RATINGS = pd.DataFrame({"user": list("aabb"), "item": list("xyxz"), "rating": [1.0, 2, 3, 4]})


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need more libraries
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    return pytest.importorskip("mlflow", reason="needs the extra mlflow")


MODELS: dict[str, tuple[Any, Any, Any]] = {
    "classifier": (SGDClassifier(max_iter=2, tol=None, random_state=0), X, Y),
    "pipeline of frames": (make_pipeline(StandardScaler(), LogisticRegression()), FRAME, Y),
    "transformer": (StandardScaler(), X, None),
    "factors": (ALS(2, max_iter=2, random_state=0), RATINGS, None),
}


@pytest.mark.parametrize("name", MODELS)
def test_mlflow_predicts_like_the_estimator(name: str, tmp_path: Path, mlflow: Any) -> None:
    model, rows, y = MODELS[name]
    model = model.fit(rows) if y is None else model.fit(rows, y)
    flavor.save_model(model, tmp_path / "model")
    served = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    method = "predict" if hasattr(model, "predict") else "transform"
    assert_array_equal(served.predict(rows), getattr(model, method)(rows))
    if hasattr(model, "predict_proba"):
        found = served.predict(rows, params={"method": "predict_proba"})
        assert_array_equal(found, model.predict_proba(rows))
    found = flavor.load_model(str(tmp_path / "model"))
    assert type(found) is type(model)
    assert_array_equal(getattr(found, method)(rows), getattr(model, method)(rows))


def test_logged_models_are_loaded_by_their_uri(mlflow: Any) -> None:
    model = MLPRegressor(hidden_layer_sizes=(3,), max_iter=2, tol=None, random_state=0)
    model.fit(X, X[:, 0])
    with mlflow.start_run():
        info = flavor.log_model(model, suffix=".safetensors", metadata={"note": "trial"})
    served = mlflow.pyfunc.load_model(info.model_uri)
    assert_array_equal(served.predict(X), model.predict(X))
    assert_array_equal(flavor.load_model(info.model_uri).coefs_[0], model.coefs_[0])
    assert served.metadata.metadata["note"] == "trial"
    assert served.metadata.metadata["daskml_dist"]["training"]["rows"] == 60
    wanted = Path(mlflow.artifacts.download_artifacts(info.model_uri)) / "requirements.txt"
    assert "safetensors==" in wanted.read_text()


def test_the_signature_equals_that_of_the_fit(tmp_path: Path, mlflow: Any) -> None:
    flavor.save_model(Ridge().fit(FRAME, X[:, 0]), tmp_path / "frame")
    served = mlflow.pyfunc.load_model(str(tmp_path / "frame"))
    columns = served.metadata.get_input_schema().to_dict()
    assert [(one["name"], one["type"]) for one in columns] == [
        ("a", "double"), ("b", "float"), ("c", "double"),
    ]  # fmt: skip
    with pytest.raises(mlflow.exceptions.MlflowException, match=r"missing inputs \['b'\]"):
        served.predict(FRAME[["a", "c"]])
    flavor.save_model(Ridge().fit(X, X[:, 0]), tmp_path / "array")
    served = mlflow.pyfunc.load_model(str(tmp_path / "array"))
    (spec,) = served.metadata.get_input_schema().inputs
    assert (spec.type, spec.shape) == (np.dtype("float64"), (-1, 3))


def test_columns_that_the_model_drops_may_be_missing(tmp_path: Path, mlflow: Any) -> None:
    columns = make_column_transformer((StandardScaler(), ["a", "c"]))
    model = make_pipeline(columns, LogisticRegression()).fit(FRAME, Y)
    flavor.save_model(model, tmp_path / "model")
    served = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    for rows in (FRAME, FRAME[["a", "c"]]):
        assert_array_equal(served.predict(rows), model.predict(FRAME))
    with pytest.raises(mlflow.exceptions.MlflowException, match=r"missing inputs \['c'\]"):
        served.predict(FRAME[["a", "b"]])


def test_invalid_arguments_are_refused(tmp_path: Path, mlflow: Any) -> None:
    with pytest.raises(NotFittedError):
        flavor.save_model(Ridge(), tmp_path / "a")
    model = Ridge().fit(X, X[:, 0])
    flavor.save_model(model, tmp_path / "b")
    with pytest.raises(ModelFileError, match="exists and is not empty"):
        flavor.save_model(model, tmp_path / "b")
    served = mlflow.pyfunc.load_model(str(tmp_path / "b"))
    with pytest.raises(ModelFileError, match=r"method='fit'.* has predict\."):
        served.predict(X, params={"method": "fit"})
    other = mlflow.models.Model()
    mlflow.pyfunc.add_to_model(other, "somewhere")
    (tmp_path / "c").mkdir()
    other.save(str(tmp_path / "c" / "MLmodel"))
    with pytest.raises(ModelFileError, match="the flavours python_function, but not daskml_dist"):
        flavor.load_model(str(tmp_path / "c"))


def test_without_mlflow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(ModelFileError, match=r"daskml-dist\[mlflow,export\]"):
        flavor.save_model(Ridge().fit(X, X[:, 0]), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_frames_with_categories_are_accepted(tmp_path: Path, mlflow: Any) -> None:
    """Categories of strings and of numbers, for which MLflow has no type."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": pd.Categorical(rng.integers(0, 3, 60))})
    frame["c"] = pd.Categorical(np.array(["u", "v"])[np.arange(60) % 2])
    y = (frame["a"] > 0).to_numpy()
    codes = make_pipeline(OrdinalEncoder(), LogisticRegression())
    boosting = HistGradientBoostingClassifier(max_iter=2)
    for name, model in {"boosting": boosting, "codes": codes}.items():
        flavor.save_model(model.fit(frame, y), tmp_path / name)
        served = mlflow.pyfunc.load_model(str(tmp_path / name))
        found = served.predict(frame, params={"method": "predict_proba"})
        assert_array_equal(found, model.predict_proba(frame))
        with pytest.raises(Exception, match="missing inputs"):
            served.predict(frame[["a", "b"]])
