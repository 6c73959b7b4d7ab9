"""Examples of the reference: every public class and function has one, and all of them run."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tests.subprocesses import environment

#: Examples of the quick run, which newcomers read first.
FIRST = {
    "preprocessing.StandardScaler", "preprocessing.OneHotEncoder", "compose.ColumnTransformer",
    "model_selection.train_test_split", "model_selection.GridSearchCV", "callbacks.Checkpoint",
    "load", "save", "metrics.f1_score", "policies.get_policy", "losses.LogLoss",
}  # fmt: skip


_FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def _public() -> dict[str, Any]:
    """Return public classes, but for exceptions, and functions, by subpackage and name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "_ext"))
        reference = importlib.import_module("reference_pages")
    found = {
        f"{subpackage}.{name}".lstrip("."): getattr(reference.module_of(subpackage), name)
        for subpackages in reference.groups().values()
        for subpackage in subpackages
        for name in reference.names_of(subpackage)
    }
    return {
        name: one
        for name, one in found.items()
        if not (inspect.isclass(one) and issubclass(one, BaseException))
    }


def run(names: list[str]) -> list[str]:
    """Run the examples of some names; return the failures as reported by doctest."""
    public, failures = _public(), []
    parser = doctest.DocTestParser()
    for name in names:
        output: list[str] = []
        runner = doctest.DocTestRunner(optionflags=_FLAGS)
        text = inspect.getdoc(public[name]) or ""
        if "torch" in text.partition(">>> ")[2] and importlib.util.find_spec("torch") is None:
            continue
        runner.run(parser.get_doctest(text, {}, name, None, None), out=output.append)
        failures += ["".join(output)] if runner.failures else []
    return failures


def test_every_public_name_has_an_example() -> None:
    public = _public()
    assert not {name for name, one in public.items() if ">>> " not in (inspect.getdoc(one) or "")}
    assert set(public) > FIRST


def test_first_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(sorted(FIRST)) == []


@pytest.mark.slow
def test_all_examples_run() -> None:
    """In a separate process, without a current client of other tests."""
    names = sorted(_public())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__, json.dumps(names)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    FAILURES = run(json.loads(sys.argv[1]))
    print("\n".join(FAILURES))
    sys.exit(bool(FAILURES))
