"""The command line: fits of files, plans, available features, and errors with suggestions."""

from __future__ import annotations

import importlib
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import joblib
import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster
from sklearn.datasets import dump_svmlight_file

import daskml_dist
from daskml_dist.cli import COMMANDS, main
from daskml_dist.cli import _checks as checks
from daskml_dist.cli._checks import CHECKS, Check, Finding
from daskml_dist.linear_model import SGDClassifier
from tests.subprocesses import environment

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3))
FRAME = pd.DataFrame(X, columns=["age", "pay", "days"]).assign(
    job="clerk", label=np.where(X[:, 0] > 0, "yes", "no")
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the same rows in each kind of file."""
    folder = tmp_path_factory.mktemp("rows")
    FRAME.to_parquet(folder / "rows.parquet")
    FRAME.to_csv(folder / "rows.csv", index=False)
    (folder / "parts").mkdir()
    FRAME[:60].to_parquet(folder / "parts/0.parquet")
    FRAME[60:].to_parquet(folder / "parts/1.parquet")
    y = (X[:, 0] > 0).astype(float)
    np.save(folder / "rows.npy", np.column_stack([X, y]))
    np.savez(folder / "rows.npz", X=X, label=y)
    dump_svmlight_file(X, y, str(folder / "rows.svm"), zero_based=False)
    dump_svmlight_file(X, y, str(folder / "zero.svm"), zero_based=True)
    return folder


@pytest.fixture
def rows(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of these files of the test's own, which is the current folder."""
    monkeypatch.chdir(shutil.copytree(files, tmp_path, dirs_exist_ok=True))
    return tmp_path


FILES = [
    ("rows.parquet", "label"), ("rows.csv", "label"), ("parts", "label"),
    ("parts/*.parquet", "label"), ("rows.npy", "-1"), ("rows.npz", "label"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "target"), FILES)
def test_files(rows: Path, file: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "max_iter=5", "--set", "tol=None", "--policy", "local"]
    assert main(["fit", file, "--target", target, *options, "--output", "model.pkl"]) == 0
    output = capsys.readouterr().out
    assert "3 features" in output
    assert "5 passes in" in output
    model = pickle.loads(Path("model.pkl").read_bytes())
    assert type(model) is SGDClassifier
    assert (model.policy, model.max_iter, model.random_state) == ("local", 5, 0)
    y = FRAME["label"] if model.classes_.dtype.kind not in "fi" else X[:, 0] > 0
    rows_in = FRAME[["age", "pay", "days"]] if "np" not in file else X
    assert model.score(rows_in, y) > 0.85
    if "np" not in file:
        assert "left out, not numeric: job" in output


FEW_PASSES = ["--set", "max_iter=3", "--set", "tol=None"]


@pytest.mark.parametrize(("file", "target"), [*FILES, ("rows.svm", None)])
def test_predictions_of_files(
    rows: Path, file: str, target: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [] if target is None else ["--target", target]
    fit = ["fit", file, *named, *FEW_PASSES, "--test", "0", "--output", "m.joblib"]
    assert main(fit) == 0
    train = capsys.readouterr().out.split("score: train ")[1].split()[0]
    model = joblib.load("m.joblib")
    expected = model.predict(FRAME[["age", "pay", "days"]] if hasattr(model, "feature_names_in_")
                             else X)  # fmt: skip
    assert main(["predict", file, *named, "--model", "m.joblib"]) == 0
    found = capsys.readouterr()
    assert found.out.split() == ["prediction", *map(str, expected.tolist())]
    assert f"score: {train}" in found.err


@pytest.mark.parametrize("output", ["p.csv", "p.parquet", "p.npy"])
def test_outputs_of_predictions(rows: Path, output: str) -> None:
    columns = ["age", "pay", "days"]
    model = SGDClassifier(max_iter=3, tol=None, random_state=0).fit(FRAME[columns], FRAME["label"])
    joblib.dump(model, "m.pkl")
    read: dict[str, Any] = {"p.csv": pd.read_csv, "p.parquet": pd.read_parquet, "p.npy": np.load}
    arguments = ["predict", "rows.parquet", "--model", "m.pkl", "--output", output]
    assert main([*arguments, "--method", "predict_proba"]) == 0
    found = read[output](output)
    np.testing.assert_array_equal(np.asarray(found), model.predict_proba(FRAME[columns]))
    assert list(getattr(found, "columns", [])) in ([], ["proba_no", "proba_yes"])
    assert main(arguments) == 0
    np.testing.assert_array_equal(np.ravel(read[output](output)), model.predict(FRAME[columns]))


@pytest.mark.parametrize("estimator", ["SGDClassifier", "DecisionTreeClassifier"])
def test_columns_of_texts(rows: Path, estimator: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The label depends on a category and on a word: both columns are used."""
    frame = pd.DataFrame({"age": np.arange(80.0) % 7, "job": ["cook", "clerk"] * 40})
    frame["note"] = np.where(np.arange(80) % 4 < 2, "a good film", "bad, very bad")
    frame["label"] = (frame["job"] == "cook") & (np.arange(80) % 4 < 2)
    frame.to_csv("texts.csv", index=False)
    columns = ["--categories", "job", "--text", "note", "--estimator", estimator]
    assert main(["fit", "texts.csv", "--target", "label", *columns, "--output", "m.joblib"]) == 0
    output = capsys.readouterr().out
    assert "3 features" in output
    assert "score: train 1.0000, test 1.0000" in output
    assert list(joblib.load("m.joblib").feature_names_in_) == ["age", "job", "note"]
    assert main(["predict", "texts.csv", "--target", "label", "--model", "m.joblib"]) == 0
    assert "score: 1.0000" in capsys.readouterr().err


@pytest.mark.parametrize("lazy", [False, True])
def test_onnx_of_columns_of_categories(
    rows: Path, lazy: bool, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("skl2onnx", reason="needs the extra export")
    frame = pd.DataFrame({"age": np.arange(80.0) % 7, "job": ["cook", "clerk"] * 40})
    frame.assign(label=frame["job"] == "cook").to_csv("jobs.csv", index=False)
    fit = ["fit", "jobs.csv", "--target", "label", "--categories", "job", "--output", "m.onnx"]
    assert main([*fit, *(["--scheduler", cluster.scheduler_address] if lazy else [])]) == 0
    assert "saved: m.onnx" in capsys.readouterr().out
    inputs = {
        "age": frame[["age"]].to_numpy(),
        "job": frame[["job"]].to_numpy(object),
    }
    labels, _ = runtime.InferenceSession("m.onnx").run(None, inputs)
    assert labels.astype(bool).tolist() == [True, False] * 40


def test_svmlight_files_use_the_given_number_of_features(rows: Path) -> None:
    options = [*FEW_PASSES, "--test", "0", "--output"]
    assert main(["fit", "rows.svm", *options, "one.joblib"]) == 0
    assert main(["fit", "zero.svm", "--zero-based", *options, "zero.joblib"]) == 0
    one, zero = joblib.load("one.joblib"), joblib.load("zero.joblib")
    np.testing.assert_array_equal(one.coef_, zero.coef_)


def test_a_fit_is_that_of_the_same_lines(rows: Path) -> None:
    """Without rows held out it is the estimator's own fit."""
    options = ["--test", "0", "--set", "max_iter=3", "--set", "tol=None", "--seed", "7"]
    assert main(["fit", "rows.npz", "--target", "label", *options, "--output", "m.joblib"]) == 0
    same = SGDClassifier(max_iter=3, tol=None, random_state=7).fit(X, (X[:, 0] > 0).astype(float))
    np.testing.assert_array_equal(joblib.load("m.joblib").coef_, same.coef_)


@pytest.mark.parametrize("suffix", [".skops", ".safetensors"])
def test_model_files(rows: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--test", "0", "--set", "max_iter=3", "--set", "tol=None", "--seed", "7"]
    assert main(["fit", "rows.npz", "--target", "label", *options, "--output", f"m{suffix}"]) == 0
    assert f"daskml_dist.load('m{suffix}')" in capsys.readouterr().out
    same = SGDClassifier(max_iter=3, tol=None, random_state=7).fit(X, (X[:, 0] > 0).astype(float))
    np.testing.assert_array_equal(daskml_dist.load(f"m{suffix}").coef_, same.coef_)


@pytest.mark.usefixtures("bad_rows")
def test_on_a_cluster(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--estimator", "LogisticRegression", "--features", "age,pay"]
    where = ["--scheduler", cluster.scheduler_address]
    assert main(["fit", "parts", "--target", "label", *options, *where]) == 0
    output = capsys.readouterr().out
    assert "2 features" in output
    assert "test 0.9" in output or "test 1.0" in output
    assert main(["fit", "gaps.csv", "--target", "label", *where]) == 1
    assert "'pay', number 1, both counted from 0)" in (output := capsys.readouterr().err)
    assert "leave such rows out with --drop-missing" in output


def test_a_checkpoint_is_gone_on_from(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--target", "label", "--set", "tol=None", "--checkpoint", "fit.npz"]
    assert main(["fit", "rows.npz", *options, "--set", "max_iter=2"]) == 0
    assert main(["fit", "rows.npz", *options, "--set", "max_iter=4"]) == 0
    assert "4 passes in" in capsys.readouterr().out


@pytest.fixture(scope="module")
def bad_files(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a folder with invalid files."""
    folder = tmp_path_factory.mktemp("bad")
    for name in ("empty.csv", "empty.parquet"):
        (folder / name).touch()
    (folder / "late.csv").write_text("age,label\n" + "1,0\n" * 2_000 + "x,1\n")
    (folder / "ragged.csv").write_text("age,label\n1,0\n1,2,3,4\n")
    (folder / "bytes.csv").write_bytes(b"\xf0\x28\x8c\x28")
    (folder / "semicolons.csv").write_text("age;label\n1,5;0\n2;1\n")
    (folder / "tabs.csv").write_text("age\tlabel\n1\t0\n")
    (folder / "several").mkdir()
    FRAME.to_csv(folder / "several/1.csv", index=False)
    FRAME.to_csv(folder / "several/2.csv", index=False, sep="|")
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (folder / "cut.npz").write_bytes((files / "rows.npz").read_bytes()[:200])
    FRAME[:0].to_csv(folder / "header.csv", index=False)
    FRAME[:0].to_parquet(folder / "none.parquet")
    FRAME[:1].to_parquet(folder / "one.parquet")
    FRAME.drop(columns="days").to_parquet(folder / "narrow.parquet")
    FRAME.assign(pay=FRAME.pay.where(FRAME.index != 7)).to_csv(folder / "gaps.csv", index=False)
    np.save(folder / "gaps.npy", np.array([[0, 1], [np.nan, 2], [np.nan, np.nan], [1, 3]]))
    (folder / "parts.pkl").mkdir()
    (folder / "ragged.csv.svm").write_text("1 2:x\n")
    (folder / "bad.pkl").write_bytes(b"no pickle")
    joblib.dump({}, folder / "none.pkl")
    model = SGDClassifier(loss="hinge", max_iter=1, tol=None)
    joblib.dump(model.fit(FRAME[["age", "pay", "days"]], FRAME["label"]), folder / "model.pkl")
    return folder


@pytest.fixture
def bad_rows(rows: Path, bad_files: Path) -> None:
    """Copies of the bad files beside the others, in the current folder."""
    shutil.copytree(bad_files, rows, dirs_exist_ok=True)


@pytest.mark.usefixtures("bad_rows")
@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["fitt", "rows.csv"], 2, "Did you mean 'fit'?"),
        (["fit", "rows.csv", "--target", "label", "--polcy", "x"], 2, "Did you mean '--policy'?"),
        (["fit", "rows.csv"], 2, "--target"),
        (["fit", "rows.svm", "--target", "y"], 2, "svmlight files contain their target"),
        (["fit", "zero.svm"], 1, "give --zero-based"),
        (["fit", "rows.svm", "--categories", "job"], 1, "--categories names columns of tables"),
        (["fit", "ragged.csv.svm"], 1, "ragged.csv.svm cannot be read: "),
        (["fit", "rows.csv", "--target", "label", "--text", "jb"], 1, "Did you mean 'job'?"),
        (["predict", "rows.csv", "--model", "no.skops"], 1, "no.skops"),
        (["predict", "rows.csv", "--model", "rows.csv"], 1, "a file that ends in .skops"),
        (["predict", "rows.csv", "--model", "m.onnx"], 1, "onnxruntime"),
        (["predict", "rows.csv", "--model", "bad.pkl"], 1, "bad.pkl cannot be read: "),
        (["predict", "rows.csv", "--model", "none.pkl"], 1, "holds a dict, which cannot predict"),
        (["predict", "narrow.parquet", "--model", "model.pkl"], 1, "There is no column 'days'"),
        (["predict", "rows.csv", "--model", "model.pkl", "--method", "predict_proba"], 1,
         "Use one of ['predict', 'decision_function']"),
        (["predict", "rows.csv", "--model", "model.pkl", "--output", "p.txt"], 1, "end it with"),
        (["predict", "rows.csv", "--model", "model.pkl", "--output", "no/p.csv"], 1, "cannot be"),
        (["fit", "rows.cvs", "--target", "label"], 1, "Did you mean 'rows.csv'?"),
        (["serve", "nothing.skops"], 1, "Name a model file"),
        (["fit", "rows.txt.gz", "--target", "label"], 1, "There is no file"),
        (["fit", "rows.csv", "--target", "labels"], 1, "Did you mean 'label'?"),
        (["fit", "rows.csv", "--target", "label", "--features", "agee"], 1, "Did you mean 'age'?"),
        (["fit", "rows.csv", "--target", "label", "--features", "job"], 1, "OneHotEncoder"),
        (["fit", "rows.npy", "--target", "label"], 1, "--target -1"),
        (["fit", "rows.npz", "--target", "lable"], 1, "Did you mean 'label'?"),
        (["fit", "rows.npz", "--target", "label", "--estimator", "SGDClasifier"], 1,
         "Did you mean 'SGDClassifier'?"),
        (["fit", "rows.npz", "--target", "label", "--policy", "snyc"], 1, "Did you mean 'sync'?"),
        (["fit", "rows.npz", "--target", "label", "--set", "alhpa=1"], 1, "Did you mean 'alpha'?"),
        (["fit", "rows.npz", "--target", "label", "--set", "alpha"], 1, "NAME=VALUE"),
        (["fit", "rows.npz", "--target", "label", "--test", "25"], 1, "--test 25.0"),
        (["fit", "rows.npz", "--target", "label", "--output", "m.h5"], 1, ".pkl"),
        (["fit", "rows.npz", "--target", "label", "--output", "no/m.pkl"], 1, "does not exist"),
        (["fit", "rows.csv", "--target", "label", "--text", "job", "--output", "m.onnx"], 1,
         "ONNX has no --text columns"),
        (["fit", "rows.npz", "--target", "label", "--estimator", "GaussianNB", "--checkpoint", "c"],
         1, "does not support checkpoints"),
        (["plan", "rows.npz", "--target", "label", "--estimator", "GaussianNB"], 1, "no plans for"),
        (["doctor", "--only", "clustre"], 1, "Did you mean 'cluster'?"),
        (["doctor", "--limit", "-1"], 1, "--limit=-1.0: use a number of seconds > 0"),
        (["serve", "m.skops", "--token-file", "no"], 1, "Name a text file"),
        (["fit", "empty.csv", "--target", "label"], 1, "empty.csv cannot be read: "),
        (["fit", "empty.parquet", "--target", "label"], 1, "empty.parquet cannot be read: "),
        (["fit", "late.csv", "--target", "label"], 1, "late.csv cannot be read: "),
        (["fit", "ragged.csv", "--target", "label"], 1, "ragged.csv cannot be read: "),
        (["fit", "bytes.csv", "--target", "label"], 1, "bytes.csv cannot be read: "),
        (["fit", "semicolons.csv", "--target", "label"], 1, "sep=';').to_csv('semicolons.csv'"),
        (["plan", "tabs.csv", "--target", "label"], 1, "is separated by tabs, not by commas"),
        (["fit", "several", "--target", "label"], 1, "several/2.csv is separated by bars"),
        (["fit", "objects.npy", "--target", "0"], 1, "objects.npy cannot be read: "),
        (["fit", "cut.npz", "--target", "label"], 1, "cut.npz cannot be read: "),
        (["fit", "header.csv", "--target", "label"], 1, "header.csv holds no rows"),
        (["fit", "none.parquet", "--target", "label"], 1, "none.parquet holds no rows"),
        (["plan", "none.parquet", "--target", "label"], 1, "none.parquet holds no rows"),
        (["fit", "one.parquet", "--target", "label"], 1, "--test 0 holds out no rows"),
        (["fit", "rows.npz", "--target", "label", "--seed", "-1"], 1, "--seed -1"),
        (["fit", "gaps.csv", "--target", "label"], 1, "1 in column 'pay'. Leave such rows out"),
        (["fit", "gaps.npy", "--target", "0"], 1, "2 in the target, 1 in column 0. Leave"),
        (["fit", "rows.parquet", "narrow.parquet", "--target", "label"], 1,
         "['days'] are columns of only one of them"),
        (["fit", "rows.npz", "--target", "label", "--output", "parts.pkl"], 1, "Name another"),
    ],
)  # fmt: skip
def test_mistakes(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = main(arguments)
    except SystemExit as error:
        found = int(error.code or 0)
    output = capsys.readouterr().err
    assert found == status
    assert words in output
    assert "Traceback" not in output


def test_rows_with_gaps_are_left_out_or_taken(
    rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = np.column_stack([np.where(X > -2, X, np.nan), X[:, 0] > 0])
    array[3, -1] = np.nan
    np.save("gaps.npy", array)
    n_whole = int(np.isfinite(array).all(axis=1).sum())
    assert main(["fit", "gaps.npy", "--target", "-1", "--drop-missing", "--test", "0",
                 "--output", "m.pkl"]) == 0  # fmt: skip
    assert pickle.loads(Path("m.pkl").read_bytes()).history_.records[0]["rows"] == n_whole
    np.save("gaps.npy", np.delete(array, 3, axis=0))
    trees = ["--estimator", "HistGradientBoostingClassifier", "--set", "max_iter=2"]
    assert main(["fit", "gaps.npy", "--target", "-1", *trees]) == 0


@pytest.mark.slow
def test_a_plan(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with dask.config.set({"daskml_dist.planning.cache": False}):
        assert main(["plan", "rows.parquet", "--target", "label"]) == 0
    output = capsys.readouterr().out
    assert "SGDClassifier, 120 rows x 3 features" in output
    assert "Advice: inline" in output


def test_every_command_has_help() -> None:
    assert set(COMMANDS) >= {"doctor", "fit", "plan", "predict"}
    for name in COMMANDS:
        module: Any = importlib.import_module(f"daskml_dist.cli.{name}")
        assert f"python -m daskml_dist {name}" in module.__doc__


@pytest.mark.parametrize("only", ["versions", "shared-memory", "fit"])
def test_available_features_are_listed(only: str) -> None:
    assert CHECKS[only].run_check().state == "ok"


def test_a_check_that_hangs_is_ended() -> None:
    found = checks.run_check_apart("fit", 0.01)
    assert found.state == "broken"
    assert "did not finish within 0.01 s" in found.text


@pytest.mark.slow
def test_the_doctor_as_a_user_calls_it() -> None:
    command = [sys.executable, "-m", "daskml_dist", "doctor"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=280, env=environment(), check=False
    )
    lines = {line.split()[1]: line for line in done.stdout.splitlines()[1:]}
    assert set(lines) == set(CHECKS)
    for name in ("versions", "fit", "cluster", "tls", "shared-memory"):
        assert lines[name].startswith("ok"), lines[name]
    assert done.returncode == any(line.startswith("broken") for line in lines.values())


def test_errors_name_the_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    real = checks.metadata.version
    monkeypatch.setattr(
        checks.metadata, "version", lambda name: "0.1" if name == "numba" else real(name)
    )
    found = CHECKS["versions"].run_check()
    assert found.state == "broken"
    assert "numba 0.1 (>=" in found.text
    assert "pip install" in found.text


def test_a_check_that_raises_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Finding:
        raise OSError("no\nsuch thing")

    monkeypatch.setitem(CHECKS, "fit", Check(fail))
    monkeypatch.setattr(sys, "argv", ["doctor", "fit"])
    checks._run_named_check()
    assert '["broken", "OSError: no such thing"]' in capsys.readouterr().out
