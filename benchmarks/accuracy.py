"""Accuracy of every policy with default hyper-parameters, on two worker processes."""

from __future__ import annotations

import time
from typing import Any

from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import scale

from benchmarks._common import markdown, persisted, processes, read_a9a, read_mnist
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import POLICIES


def run(tiny: bool = False) -> str:
    """Return the table."""
    rows = []
    with processes(2):
        for name, (X, y, X_test, y_test) in _problems(tiny).items():
            if not hasattr(X, "tocsr"):
                X, y = persisted(X, 6), persisted(y, 6)
            for policy in list(POLICIES)[:2] if tiny else POLICIES:
                start = time.perf_counter()
                clf = SGDClassifier(random_state=0, policy=policy).fit(X, y)
                seconds = time.perf_counter() - start
                auc = "-"
                if len(clf.classes_) == 2:
                    auc = f"{roc_auc_score(y_test, clf.decision_function(X_test)):.4f}"
                records = clf.history_.records
                moved = sum(r["bytes_pushed"] + r["bytes_pulled"] for r in records) / 1e6
                accuracy = f"{clf.score(X_test, y_test):.4f}"
                loss = f"{records[-1]['loss']:.4f}"
                rows.append(
                    [
                        name,
                        policy,
                        accuracy,
                        auc,
                        loss,
                        clf.n_iter_,
                        f"{seconds:.2f}",
                        f"{moved:.1f}",
                    ]
                )
    columns = ["data", "policy", "accuracy", "AUC", "loss", "passes", "seconds", "MB moved"]
    return markdown("Test accuracy, default hyper-parameters, 2 worker processes", columns, rows)


def _problems(tiny: bool) -> dict[str, Any]:
    if not tiny:
        return {"a9a": read_a9a(), "MNIST / 255": read_mnist()}
    X, y = load_breast_cancer(return_X_y=True)
    return {"breast cancer": (scale(X), y, scale(X), y)}
