"""Examples run as by a user, or in this process if imports take most of the time."""

from __future__ import annotations

import gzip
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_iris

from daskml_dist.backends.devices import gpu_problem

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def run_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return the output of an example run in this process, whose clusters fork their workers."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.syspath_prepend(EXAMPLES)  # as Python does for a script
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_quickstart_compares_policies_on_workers(run_example: Callable[..., str]) -> None:
    output = run_example("quickstart.py", "--passes", "3", "--policy", "sync", "average")
    assert "digits: 1797 x 64, 2 workers" in output
    rows = [re.split(r"\s*│\s*", line)[1:-1] for line in output.splitlines() if "│" in line]
    (sync, average) = ({"policy": row[0], "last": row[3], "moved": row[6]} for row in rows)
    assert (sync["policy"], average["policy"]) == ("sync", "average")
    assert sync["last"] != average["last"]  # the policies are seen to differ
    # The one average, at the end, is as many bytes as a push of each lane.
    assert float(average["moved"]) < float(sync["moved"]) / 50


@pytest.mark.parametrize(
    "kind", ["csv", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("parquet", "svm"))]
)
def test_quickstart_reads_files(tmp_path: Path, kind: str, run_example: Callable[..., str]) -> None:
    X, y = load_iris(return_X_y=True)
    path = tmp_path / f"iris.{kind}"
    if kind == "svm":
        dump_svmlight_file(X, y, str(path))
    else:
        pd = pytest.importorskip("pandas")
        frame = pd.DataFrame(X, columns=list("abcd")).assign(species=np.array(["i", "v", "w"])[y])
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    options = ["--target", "species", "--workers", "0", "--policy", "sync", "--passes", "5"]
    run = run_example if kind == "csv" else _run
    output = run("quickstart.py", "--data", str(path), *options)
    assert f"iris.{kind}: 150 x 4, 0 workers" in output


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("adult_census.py", []),
        ("clusters.py", ["--data"]),
        ("cnn_images.py", []),
        ("mnist_mlp.py", ["--data"]),
        ("mnist_policies.py", []),
        ("newsgroups.py", []),
        ("nycflights.py", []),
        ("quickstart.py", ["--data"]),
        ("rank_pages.py", []),
        ("recommend_jokes.py", []),
        ("rnn_text.py", []),
        ("topics.py", []),
    ],
)
def test_an_empty_folder_is_a_usage_error(
    tmp_path: Path,
    name: str,
    option: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if name in {"cnn_images.py", "rnn_text.py"}:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.syspath_prepend(EXAMPLES)
    for folder in (tmp_path, tmp_path / "none"):
        monkeypatch.setattr(sys, "argv", [name, *option, str(folder)])
        with pytest.raises(SystemExit, match="2"):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        output = capsys.readouterr().err
        assert "usage:" in output
        assert str(folder) in output
        assert ": name a" in output
        if name not in {"quickstart.py", "rnn_text.py"}:  # which read a user's own files
            assert "DASKML_DIST_DATA" in output
            assert "examples/fetch.py" in output


@pytest.mark.slow
def test_a_new_users_first_hour() -> None:
    output = _run("first_hour.py")
    assert "was lost" in output
    assert output.count("the same coefficients") == 2
    assert output.endswith("Done.\n")


@pytest.mark.slow
def test_a_service_of_incomes(tmp_path: Path) -> None:
    """With scikit-learn's rows if those of the census are missing."""
    for package in ("uvicorn", "uvloop", "httptools", "msgspec"):
        pytest.importorskip(package, reason="needs the extra serve")
    output = _run("serve_adult.py", str(tmp_path))
    assert output.count("to the bit: True") == 2
    assert "version 1 again" in output
    assert output.endswith("status 0.\n")


@pytest.mark.slow
def test_a_stream_example_serves_what_it_has_learned() -> None:
    for package in ("uvicorn", "uvloop", "httptools", "msgspec"):
        pytest.importorskip(package, reason="needs the extra serve")
    output = _run("learn_then_serve.py", "--calls", "400", "--publish-every", "100")
    served = re.findall(r"version (\d), \d+ rows: (.*) \(to the bit: True\)", output)
    assert [version for version, _ in served] == ["1", "2", "3", "4"]
    assert len({answers for _, answers in served}) == 4
    assert "versions on disk: 2, 3, 4\n" in output
    assert output.endswith("status 0.\n")


def test_every_example_has_a_test() -> None:
    texts = "".join(path.read_text() for path in EXAMPLES.parent.glob("tests/*/test_*.py"))
    # A call, a path to it, or a row of a table of runs; a missing folder alone is no run.
    runs = re.findall(r'(?:run(?:_example)?\(|/ )"(\w+\.py)"|\("(\w+\.py)", 0', texts)
    names = {path.name for path in EXAMPLES.glob("*.py")} - {"fetch.py"}  # test_fetch.py
    assert names <= {name for pair in runs for name in pair}


@pytest.mark.slow
def test_local_cuda_cluster_without_gpus() -> None:
    output = _run("local_cuda_cluster.py", "--cpu", "--rows", "4000", "--features", "10")
    assert "4,000 x 10 rows on 2 workers, device='cpu'" in output
    accuracy = [float(part.split()[0]) for part in output.split("accuracy")[1:]]
    assert len(accuracy) == 2
    assert min(accuracy) > 0.8


def test_local_cuda_cluster_names_missing_requirements(run_example: Callable[..., str]) -> None:
    """Without dask-cuda or a GPU it prints one line that names the remedy."""
    if gpu_problem() is None:
        pytest.skip("there is a GPU here")
    with pytest.raises(SystemExit, match="try --cpu"):  # a text: status 1, and no traceback
        run_example("local_cuda_cluster.py")


@pytest.mark.slow
def test_clusters_of_digits(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    output = _run("clusters.py", "--picture", str(tmp_path / "centres.png"))
    assert float(output.split("%")[0].split()[-1]) > 75
    assert (tmp_path / "centres.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rows", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_boosting(tmp_path: Path, rows: int, run_example: Callable[..., str]) -> None:
    pytest.importorskip("matplotlib")
    picture, few = tmp_path / "boosting.png", ["--iterations", "10", "--workers", "0"]
    few = few if rows < 20_000 else []
    run = run_example if rows < 20_000 else _run
    output = run("boosting.py", "--rows", str(rows), *few, "--picture", str(picture))
    assert float(output.split("AUC ")[1].split(",")[0]) > 0.8
    # The uninformative feature comes last.
    assert output.splitlines()[-2].split(", ")[-1].startswith("5: ")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_clicks_on_ids_that_come_and_go(tmp_path: Path, run_example: Callable[..., str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "clicks.png"
    output = run_example("growing_clicks.py", "--calls", "600", "--picture", str(picture))
    rows = [
        int(re.findall(r"([\d,]+) ids", line)[0].replace(",", "")) for line in output.splitlines()
    ]
    assert rows[0] > rows[1] > rows[2]
    losses = [float(re.findall(r"quarter ([\d.]+)", line)[0]) for line in output.splitlines()]
    assert max(losses) < 0.64  # that of a constant is 0.65
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_kinds_of_cells(tmp_path: Path, run_example: Callable[..., str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "cells.png"
    few = ["--cells", "3000", "--genes", "400", "--picture", str(picture)]
    output = run_example("cell_counts.py", *few)
    assert "3,000 cells x 400 genes in 2 chunks" in output
    assert float(output.split("index ")[1]) > 0.9
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_map_of_land_cover(tmp_path: Path, run_example: Callable[..., str]) -> None:
    for package in ("matplotlib", "xarray"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    picture = tmp_path / "cover.png"
    output = run_example("land_cover.py", "--size", "60", "--picture", str(picture))
    one, every = re.findall(r"(0\.\d+|1\.0+)", output)
    assert 0.7 < float(one) < float(every)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_clicks_that_drift(tmp_path: Path, run_example: Callable[..., str]) -> None:
    pytest.importorskip("matplotlib")
    picture, arguments = tmp_path / "clicks.png", ["--calls", "1000"]
    arguments += ["--checkpoint", str(tmp_path / "clicks.npz")]
    output = run_example("online_ctr.py", *arguments, "--picture", str(picture))
    loss = [float(line.split("loss ")[1].split(",")[0]) for line in output.splitlines()]
    assert loss[0] > loss[1] > loss[2]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (
        run_example("online_ctr.py", *arguments).count("; 0 calls of") == 3
    )  # all had been learned


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("gallery/plot_*.py")))
def test_pictures_of_the_site(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples that each build of the documentation runs."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    shown: list[int] = []
    monkeypatch.setattr(pyplot, "show", lambda: shown.extend(pyplot.get_fignums()))
    runpy.run_path(str(EXAMPLES / "gallery" / name), run_name="__main__")
    pyplot.close("all")
    assert shown


@pytest.mark.slow
def test_forests(tmp_path: Path, run_example: Callable[..., str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "forests.png"
    output = run_example("forests.py", "--rows", "3000", "--picture", str(picture))
    assert "grows the same trees: True" in output
    assert float(output.split("accuracy ")[1].split(",")[0]) > 0.8
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_ensembles(run_example: Callable[..., str]) -> None:
    rows = run_example("ensembles.py", "--rows", "4000").splitlines()[1:]
    brier = {row[:28].strip(): float(row.split()[-2]) for row in rows}
    assert len(brier) == 6
    assert brier["naive Bayes, calibrated"] < brier["naive Bayes"]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pruner", ["median", pytest.param("halving", marks=pytest.mark.slow)])
def test_optuna_search(pruner: str, workers: int, run_example: Callable[..., str]) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    few = ["--rows", "2000", "--trials", "8", "--passes", "4", "--workers", str(workers)]
    output = run_example("optuna_search.py", *few, "--pruner", pruner)
    assert 0 < int(output.split(" of 8 trials pruned")[0]) < 8
    assert int(output.split("pruned; ")[1].split(" of 32 passes")[0]) < 32
    assert float(output.split("accuracy ")[1].split()[0]) > 0.8


@pytest.mark.gpu
def test_local_cuda_cluster() -> None:
    pytest.importorskip("dask_cuda")
    output = _run("local_cuda_cluster.py", "--rows", "200000")
    assert output.count("accuracy 0.9") == 2


@pytest.mark.data
@pytest.mark.slow
def test_adult_census(data_dir: Path) -> None:
    output = _run("adult_census.py", str(data_dir / "adult"), "--policy", "sync")
    assert float(output.split("AUC")[1].split()[0]) >= 0.903


@pytest.mark.data
@pytest.mark.slow
def test_nycflights(data_dir: Path) -> None:
    output = _run("nycflights.py", str(data_dir / "nycflights"))
    assert float(output.split("RMSE")[1].split()[0]) <= 17.95


def test_actors_and_learners(run_example: Callable[..., str]) -> None:
    output = run_example("actor_learner.py", "--workers", "2")
    (steps,) = re.findall(r"after 300 pushes the way takes (\d+) steps", output)
    assert int(steps) < 10  # of 30 before


@pytest.mark.data
@pytest.mark.slow
def test_rank_pages(data_dir: Path) -> None:
    output = _run("rank_pages.py", str(data_dir / "snap" / "wiki-Vote.txt"))
    assert "103,689 edges, 7,115 vertices, 24 components, the largest of 7,066" in output
    assert "4037 0.004607" in output


@pytest.mark.data
@pytest.mark.slow
def test_newsgroups(data_dir: Path) -> None:
    output = _run("newsgroups.py", str(data_dir / "news20"))
    accuracy = [float(part.split()[0]) for part in output.split("accuracy")[1:]]
    assert len(accuracy) == 2
    assert min(accuracy) >= 0.850


@pytest.mark.data
@pytest.mark.slow
def test_jokes(data_dir: Path, tmp_path: Path) -> None:
    picture = tmp_path / "jokes.png"
    output = _run("recommend_jokes.py", str(data_dir / "jester"), "--picture", str(picture))
    assert float(output.split("held-out RMSE ")[1].split(",")[0]) < 4.124
    assert output.count("joke ") == 9
    assert picture.stat().st_size > 10_000


@pytest.mark.data
@pytest.mark.slow
def test_topics(data_dir: Path, tmp_path: Path) -> None:
    picture = tmp_path / "topics.png"
    options = ["--topics", "12", "--passes", "8", "--picture", str(picture)]
    lines = _run("topics.py", str(data_dir / "news20"), *options).splitlines()
    assert len(lines) == 13
    assert picture.stat().st_size > 1_000


@pytest.mark.data
@pytest.mark.slow
def test_mnist(data_dir: Path) -> None:
    options = ["--policy", "allreduce", "--passes", "3"]
    output = _run("mnist_policies.py", str(data_dir / "mnist"), *options)
    assert float(output.split("accuracy")[1].split()[0]) > 0.88


@pytest.mark.slow
def test_sparknet_grid(tmp_path: Path) -> None:
    picture = tmp_path / "grid.png"
    options = ["--lanes", "2", "--tau", "1", "8", "--passes", "15", "--picture", str(picture)]
    lines = _run("sparknet_grid.py", *options).splitlines()
    assert len(lines) == 2
    assert all("accuracy 0.9" in line for line in lines)
    assert picture.stat().st_size > 1_000


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("rnn_text.py", 0.9), ("cnn_images.py", 0.9)])
def test_networks_of_torch(name: str, least: float) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert float(_run(name).split("accuracy")[1].split()[0]) > least


@pytest.mark.slow
def test_mnist_mlp_takes_the_digits_or_files(tmp_path: Path) -> None:
    output = _run("mnist_mlp.py", "--policy", "allreduce", "--passes", "30")
    assert float(output.split("accuracy ")[1].split(",")[0]) > 0.93
    rng, n_rows = np.random.default_rng(0), {"train": 60, "t10k": 20}
    for name, n in n_rows.items():
        for kind, shape in [("images-idx3", (n, 4, 4)), ("labels-idx1", (n,))]:
            head = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            data = rng.integers(3, size=shape, dtype=np.uint8).tobytes()
            (tmp_path / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + data))
    options = ["--passes", "1", "--hidden", "4", "--policy", "sync"]
    assert "60 x 16 rows" in _run("mnist_mlp.py", "--data", str(tmp_path), *options)


@pytest.mark.slow
def test_pipeline_makes_the_same_steps() -> None:
    options = ["--width", "32", "--rows", "2000", "--layers", "3"]
    lines = _run("pipeline.py", *options).splitlines()
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.slow
def test_columns_move_products_alone() -> None:
    output = _run("columns.py", "--features", "65536", "--rows", "2000")
    by_rows, by_columns = (float(line.split(" kB")[0].split()[-1]) for line in output.splitlines())
    assert by_columns < by_rows / 4


def test_private_fits_cost_accuracy(run_example: Callable[..., str]) -> None:
    options = ["--rows", "8000", "--passes", "4", "--seed", "0"]
    output = run_example("private_fits.py", "--epsilon", "0.05", "8", *options)
    rows = [line.split() for line in output.splitlines()[1:]]
    assert [row[0] for row in rows] == ["0.05", "8", "none"]
    little, much, none = (float(row[1]) for row in rows)
    assert little < much <= none + 0.02
    assert float(rows[0][2]) > float(rows[1][2])
