"""What readers look for: their words are on the page that answers, and tables are true."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest
from sklearn.utils import all_estimators

from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("hyperparameter", "model_selection.md"),
        ("hyperparameter", "index.md"),
        ("class imbalance", "tuning.md"),
        ("save a model", "export.md"),
        ("anomal", "mixture.md"),
        ("class imbalance", "guide.md"),
        ("anomaly detection", "guide.md"),
        ("scikit-learn", "coming_from_sklearn.md"),
    ],
)
def test_words_of_readers_are_on_their_page(words: str, page: str) -> None:
    assert words in (DOCS / page).read_text(encoding="utf-8").lower()


def _defaults(estimator_class: Any) -> dict[str, Any]:
    return {name: p.default for name, p in inspect.signature(estimator_class).parameters.items()}


def _differing_defaults() -> set[tuple[str, str]]:
    """Return each (class, parameter) with another default than the scikit-learn class of that name.

    Deprecated parameters of scikit-learn have no default; ``False`` and ``0``, and ``1`` and
    ``1.0``, count as equal.
    """
    theirs = dict(all_estimators())
    found = set()
    for subpackage in ("linear_model", "svm", "naive_bayes", "neural_network", "tree", "ensemble",
                 "calibration", "cluster", "decomposition", "mixture", "preprocessing", "impute",
                 "compose", "feature_extraction", "model_selection"):  # fmt: skip
        module = importlib.import_module(f"daskml_dist.{subpackage}")
        for name in set(module.__all__) & theirs.keys():
            ours, other = _defaults(getattr(module, name)), _defaults(theirs[name])
            for parameter in ours.keys() & other.keys():
                gone = other[parameter] in ("deprecated", "warn")
                if not gone and ours[parameter] is not other[parameter]:
                    if ours[parameter] != other[parameter]:
                        found.add((name, parameter))
    return found


def test_the_table_of_differing_defaults_is_that_of_the_code() -> None:
    page = (DOCS / "coming_from_sklearn.md").read_text(encoding="utf-8")
    table = page.split("## Defaults that differ")[1].split("##")[0]
    documented = set()
    for line in (line for line in table.splitlines() if line.startswith("| `")):
        classes, parameters = (re.findall(r"`(\w+)`", cell) for cell in line.split(" | ")[:2])
        documented |= {(name, parameter) for name in classes for parameter in parameters}
    assert documented == _differing_defaults()
