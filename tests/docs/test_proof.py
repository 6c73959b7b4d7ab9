"""The page of proofs names tests, benchmarks and logs that there are, and leaves no figure out."""

from __future__ import annotations

import re

from tests.docs.blocks import PAGES, ROOT

PROOF = (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")


def test_tests_and_logs_are_there() -> None:
    named = set(re.findall(r"`((?:tests|benchmarks)/[\w/]+\.(?:py|txt))`", PROOF))
    assert len(named) > 15
    missing = {path for path in named if not (ROOT / path).is_file()}
    assert not missing


def test_benchmarks_are_there() -> None:
    named = set(re.findall(r"python -m benchmarks ?(\.?\w+)", PROOF))
    files = {name.removeprefix(".") + ".py" for name in named if name != "papers"}
    assert len(files) > 25
    assert not {name for name in files if not (ROOT / "benchmarks" / name).is_file()}


def test_each_figure_of_the_pages_has_a_row() -> None:
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES.values())
    figures = set(re.findall(r"python -m benchmarks (\w+)`", texts))
    rows = set(re.findall(r"python -m benchmarks (\w+)`", PROOF))
    assert len(figures) > 30
    assert not figures - rows


def test_every_log_is_named() -> None:
    logs = {path.name for path in (ROOT / "benchmarks" / "results").iterdir()}
    assert logs == set(re.findall(r"benchmarks/results/([\w.]+\.txt)", PROOF))


def test_pages_show_the_tables_of_the_logs() -> None:
    shown = {
        line for page in PAGES.values() for line in page.read_text(encoding="utf-8").splitlines()
    }
    results = (ROOT / "benchmarks" / "results").iterdir()
    logs = [path.read_text(encoding="utf-8") for path in results]
    rows = {line for text in logs for line in text.splitlines() if line.startswith("|")}
    assert len(rows) > 100
    assert not rows - shown
