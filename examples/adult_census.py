"""Census income: mixed columns through a scikit-learn ColumnTransformer, then any policy.

    python examples/adult_census.py FOLDER --policy sync async

FOLDER holds ``adult.data`` and ``adult.test`` of the UCI repository; default: the folder ``adult``
in ``DASKML_DIST_DATA``, or in ``shared/data`` beside the project.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import POLICIES

NUMBERS = ["age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "income",
]  # fmt: skip


def data_folder() -> Path:
    """Where the real data lies by default."""
    sibling = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("DASKML_DIST_DATA") or sibling) / "adult"


def read(path: Path, skip: int) -> tuple[Any, Any]:
    """Rows and labels; "?" is a missing value, and the test file's labels end in a full stop."""
    try:
        import pandas as pd
    except ImportError as error:
        raise SystemExit('Reading tables needs: pip install "daskml-dist[dataframe]"') from error
    frame = pd.read_csv(path, names=COLUMNS, skiprows=skip, skipinitialspace=True, na_values="?")
    return frame, frame.pop("income").str.rstrip(".").to_numpy(dtype=object)


def preprocessing() -> ColumnTransformer:
    """Numbers scaled, categories one-hot."""
    categories = [name for name in COLUMNS[:-1] if name not in NUMBERS]
    encode = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="missing"),
        OneHotEncoder(handle_unknown="ignore"),
    )
    return ColumnTransformer([("n", StandardScaler(), NUMBERS), ("c", encode, categories)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=data_folder())
    parser.add_argument("--policy", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        parser.error(f"no folder {arguments.folder}: name one that holds adult.data")

    X, y = read(arguments.folder / "adult.data", skip=0)
    X_test, y_test = read(arguments.folder / "adult.test", skip=1)
    prepare = preprocessing().fit(X)
    rows, rows_test = prepare.transform(X), prepare.transform(X_test)
    print(f"{rows.shape[0]} rows, {rows.shape[1]} columns after encoding")
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
            clf = SGDClassifier(policy=policy, random_state=0).fit(rows, y)
            auc = roc_auc_score(y_test == clf.classes_[1], clf.decision_function(rows_test))
            accuracy = clf.score(rows_test, y_test)
            print(f"{policy:10s} accuracy {accuracy:.4f}  AUC {auc:.4f}  passes {clf.n_iter_}")


if __name__ == "__main__":
    main()
