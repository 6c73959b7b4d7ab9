"""The page on the architecture names the subpackages, loops and files that there are."""

from __future__ import annotations

import re
import tomllib

from daskml_dist.training.worker.loops import LOOPS
from tests.docs.blocks import ROOT

PACKAGE = ROOT / "daskml_dist"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_each_subpackage_has_its_layer() -> None:
    """The page's table has the subpackages of the import contract, in its order of layers."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [
        [name for name in re.findall(r"\w+", layer) if not name.startswith("_")]
        for layer in contracts["contracts"][0]["layers"]
    ]
    floors = [
        {n for n in re.findall(r"`(\w+)`", subpackages) if not n.startswith("_")}
        for subpackages in re.findall(r"^\| \d+ \| ([^|]+) \|", PAGE, re.MULTILINE)
    ]
    listed = [subpackage for floor in floors for subpackage in floor]
    assert sorted(listed) == sorted(subpackage for layer in layers for subpackage in layer)
    floor_of = {subpackage: i for i, floor in enumerate(floors) for subpackage in floor}
    heights = [floor_of[subpackage] for layer in layers for subpackage in layer]
    assert heights == sorted(heights)


def test_each_file_is_there() -> None:
    for name in set(re.findall(r"`([\w/]+\.py)`", PAGE)):
        assert any(PACKAGE.rglob(name)), name
    for folder in set(re.findall(r"`(\w+/[\w/]*)`", PAGE)):
        assert (PACKAGE / folder).exists() or (ROOT / folder).exists(), folder


def test_each_training_loop_is_described() -> None:
    for name in LOOPS:
        assert f"*{name.replace('_', ' ')}*" in PAGE, name


def test_each_answer_stands_in_its_file() -> None:
    """The table of questions names functions and classes that their files define."""
    answers = re.findall(r"^\| [^|]+ \| `([\w/]+\.py)`: `(\w+)`", PAGE, re.MULTILINE)
    assert len(answers) > 5
    for file, name in answers:
        text = (PACKAGE / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *(async )?(def|class) {name}\b", text, re.MULTILINE), (file, name)


def test_each_name_is_one_of_the_package() -> None:
    """What the page sets as code, and looks like a name of Python, occurs in the package."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    words = set(re.findall(r"\w+", text)) | {path.stem for path in PACKAGE.rglob("*")}
    words |= set(re.findall(r"\w+", (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    names = {
        name
        for code in re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", PAGE)
        for name in code.split(".")
    }
    assert len(names) > 100
    assert not names - words
