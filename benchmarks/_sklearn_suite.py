"""scikit-learn's own installed tests, run on this package's classes of the same names.

    python -m benchmarks._sklearn_suite [MODULE ...] [--out FOLDER]

Each public name of a subpackage (`linear_model`, `svm`, ...) replaces scikit-learn's in copies of
its test modules. A test counts if it used one of our classes or functions and scikit-learn itself
does not expect it to fail. The numbers of passed and of all tests of each module are printed, then
the sums, with trees and boosting separate; FOLDER gets each module's failures, one per line. All
modules take an hour; ``linear_model/tests/test_sgd`` selects one. Needs pytest and pytest-timeout.
docs/sklearn_tests.md lists the tests that do not pass, with reasons.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import sklearn

SUBPACKAGES = (
    "linear_model", "svm", "naive_bayes", "preprocessing", "impute", "feature_extraction",
    "feature_selection",
    "compose", "metrics", "neural_network", "cluster", "decomposition", "mixture", "ensemble",
    "model_selection", "tree",
)  # fmt: skip
#: Test modules outside SUBPACKAGE/tests.
ELSEWHERE = {
    "naive_bayes": ("tests/test_naive_bayes.py",),
    "linear_model": ("linear_model/_glm/tests/test_glm.py",),
    "ensemble": (
        "ensemble/_hist_gradient_boosting/tests/test_gradient_boosting.py",
        "ensemble/_hist_gradient_boosting/tests/test_warm_start.py",
        "ensemble/_hist_gradient_boosting/tests/test_monotonic_constraints.py",
    ),
}
#: Modules that are counted separately: those of trees and boosting.
TREES = ("tree/", "ensemble/_hist_gradient_boosting/")
#: Limits in seconds for a module, and for a test.
MODULE_SECONDS, TEST_SECONDS = 1500, 60

#: Records which tests use our names, and their outcomes.
CONFTEST = """
import functools, importlib, inspect, json, os, pytest
from sklearn.conftest import *  # scikit-learn's fixtures
from sklearn.conftest import pytest_configure as _configure

USED, RESULTS = set(), []

def _note(subpackage):
    module = importlib.import_module("daskml_dist." + subpackage)
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isclass(found):
            def __new__(cls, *args, _name=name, **kwargs):
                USED.add(_name)
                return object.__new__(cls)
            found.__new__ = staticmethod(__new__)
        elif inspect.isfunction(found):
            def wrapped(*args, _f=found, _name=name, **kwargs):
                USED.add(_name)
                return _f(*args, **kwargs)
            setattr(module, name, functools.wraps(found)(wrapped))

def pytest_configure(config):
    try:
        _configure(config)
    except Exception:
        pass
    for subpackage in os.environ["SUITE_SUBPACKAGES"].split():
        _note(subpackage)

def pytest_collection_modifyitems(config, items):
    pass

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    USED.clear()

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    has_run = report.outcome in ("passed", "failed") and not hasattr(report, "wasxfail")
    if call.when == "call" and USED and has_run:
        value = None if call.excinfo is None else call.excinfo.value
        error = "" if value is None else f"{type(value).__name__}: {value}"
        RESULTS.append([item.name, report.outcome, error[:400].replace("\\n", " ")])

def pytest_sessionfinish(session):
    with open(os.environ["SUITE_OUT"], "w") as file:
        json.dump(RESULTS, file)
"""

PROXY = '''
import importlib

class Proxy:
    """A subpackage: our names, and scikit-learn's for the rest."""

    def __init__(self, subpackage):
        self.ours = importlib.import_module("daskml_dist." + subpackage)
        self.theirs = importlib.import_module("sklearn." + subpackage)

    def __getattr__(self, name):
        return getattr(self.ours if name in self.ours.__all__ else self.theirs, name)
'''


def rewritten(path: Path, root: Path, names: dict[str, str]) -> str | None:
    """Return a test module with our names in place of scikit-learn's; None if it imports none."""
    text = path.read_text()
    last, added = 0, []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            last = node.end_lineno or last
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sklearn"):
            for alias in node.names:
                given = alias.asname or alias.name
                if alias.name in names:
                    subpackage = names[alias.name]
                    added.append(f"from daskml_dist.{subpackage} import {alias.name} as {given}")
                elif node.module == "sklearn" and alias.name in names.values():
                    added.append(
                        f"from suite_proxy import Proxy as _P; {given} = _P({alias.name!r})"
                    )
    if not added:
        return None
    lines = text.split("\n")
    package = "sklearn." + ".".join(path.relative_to(root).parts[:-1])
    body = "\n".join(lines[:last] + added + lines[last:])
    return re.sub(
        r"^from \.(\w*)", lambda m: f"from {package}.{m[1]}".rstrip("."), body, flags=re.M
    )


def run_module(target: Path, subpackages: list[str]) -> list[list[str]] | str:
    """Return name, outcome and error of each test that counts, or the reason why there is none."""
    results = target.with_suffix(".json")
    paths = [str(target.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ, "SUITE_OUT": str(results), "SUITE_SUBPACKAGES": " ".join(subpackages),
        "SKLEARN_TESTS_GLOBAL_RANDOM_SEED": "42", "PYTHONPATH": os.pathsep.join(paths),
    }  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull,
        f"--rootdir={target.parent}", f"--timeout={TEST_SECONDS}", "--tb=no", "-W", "ignore",
        str(target),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=target.parent, env=environment, capture_output=True, text=True,
            timeout=MODULE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"took more than {MODULE_SECONDS} s"
    if not results.exists():
        return f"did not run: {(done.stdout + done.stderr).strip()[-200:]}"
    found: list[list[str]] = json.loads(results.read_text())
    return found


def main() -> None:
    """Run the modules, and print the numbers of passed tests."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--out", type=Path, default=tempfile.mkdtemp(prefix="suite-"))
    given = parser.parse_args()
    names = {
        name: subpackage
        for subpackage in SUBPACKAGES
        for name in importlib.import_module(f"daskml_dist.{subpackage}").__all__
        if not name.isupper()
    }
    out = Path(given.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "conftest.py").write_text(CONFTEST)
    (out / "suite_proxy.py").write_text(PROXY)
    root = Path(sklearn.__file__).parent
    counts = {"all": [0, 0], "trees and boosting": [0, 0], "without these": [0, 0]}
    for subpackage in SUBPACKAGES:
        paths = sorted((root / subpackage).glob("tests/test_*.py"))
        for path in [*paths, *(root / more for more in ELSEWHERE.get(subpackage, ()))]:
            label = str(path.relative_to(root).with_suffix(""))
            if given.modules and label not in given.modules:
                continue
            text = rewritten(path, root, names)
            if text is None:
                continue
            target = out / f"test_{label.replace('/', '_')}.py"
            target.write_text(text)
            found = run_module(target, list(SUBPACKAGES))
            if isinstance(found, str):
                print(f"{label:70} {found}", flush=True)
                continue
            passed = sum(outcome == "passed" for _, outcome, _ in found)
            failed = [f"{name}: {error}" for name, outcome, error in found if outcome != "passed"]
            target.with_suffix(".failures.txt").write_text("\n".join(failed))
            part = "trees and boosting" if label.startswith(TREES) else "without these"
            for kind in ("all", part):
                counts[kind][0] += passed
                counts[kind][1] += len(found)
            if found:
                print(f"{label:70} {passed:5} / {len(found)}", flush=True)
    for kind, (passed, total) in counts.items():
        print(f"{kind:70} {passed:5} / {total} ({100 * passed / max(total, 1):.1f} %)")
    print(f"scikit-learn {sklearn.__version__}; failures under {out}")


if __name__ == "__main__":
    main()
