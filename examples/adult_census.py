"""Census income from CSV: dask.dataframe, encoding, scaling and SGD in one scikit-learn pipeline.

    python examples/adult_census.py FOLDER --policy sync async

FOLDER holds ``adult.data`` and ``adult.test`` of the UCI repository; default: where
``python examples/fetch.py adult`` puts them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster
from fetch import data_folder, require
from sklearn.pipeline import Pipeline, make_pipeline

from daskml_dist.compose import make_column_transformer
from daskml_dist.impute import SimpleImputer
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.metrics import accuracy_score, roc_auc_score
from daskml_dist.policies import POLICIES
from daskml_dist.preprocessing import OneHotEncoder, StandardScaler

NUMBERS = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
]  # fmt: skip


def read(path: Path) -> tuple[Any, Any]:
    """Lazy rows and labels; "?" is a missing value, and the test file's labels end in a stop."""
    try:
        import dask.dataframe as dd
    except ImportError as error:
        raise SystemExit('Reading tables needs: pip install "daskml-dist[dataframe]"') from error
    options: dict[str, Any] = {"names": COLUMNS, "skipinitialspace": True, "na_values": "?"}
    frame = dd.read_csv(path, comment="|", blocksize="1MB", **options)
    return frame[COLUMNS[:-1]], frame["income"].str.rstrip(".")


def pipeline(policy: str) -> Pipeline:
    """Numbers scaled, categories one-hot, and a linear model."""
    categories = [name for name in COLUMNS[:-1] if name not in NUMBERS]
    encode = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="missing"),
        OneHotEncoder(handle_unknown="ignore"),
    )
    return make_pipeline(
        make_column_transformer((StandardScaler(), NUMBERS), (encode, categories)),
        SGDClassifier(policy=policy, random_state=0),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=data_folder("adult"))
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    require(parser, "adult", *(arguments.folder / f"adult.{part}" for part in ("data", "test")))

    X, y = read(arguments.folder / "adult.data")
    X_test, y_test = read(arguments.folder / "adult.test")
    with (
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        for policy in arguments.policy:
            model = pipeline(policy).fit(X, y)
            accuracy = accuracy_score(y_test, model.predict(X_test))
            auc = roc_auc_score(y_test, model.decision_function(X_test))
            print(
                f"{policy:10s} accuracy {accuracy:.4f}  AUC {auc:.4f}  passes {model[-1].n_iter_}"
            )


if __name__ == "__main__":
    main()
