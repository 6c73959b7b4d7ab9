"""What is said of versions in several places is said once: in pyproject.toml."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
REQUIRED = {r.name: r for r in map(Requirement, PROJECT["project"]["dependencies"])}
PYTHONS = re.findall(r":: (3\.\d+)'", str(PROJECT["project"]["classifiers"]))
#: Names of conda's packages that are others than PyPI's.
CONDA = {"dask-core": "dask"}


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _conda(text: str) -> dict[str, SpecifierSet]:
    """Return the bounds of versions of packages that a recipe or an environment lists."""
    return {
        CONDA.get(name, name): SpecifierSet(bounds)
        for name, bounds in re.findall(r"^ +- ([\w-]+) ?(>=[\d.,<]+)", text, re.MULTILINE)
    }


@pytest.mark.parametrize("file", ["recipe/meta.yaml", "environment.yml"])
def test_conda_asks_for_the_same_versions(file: str) -> None:
    bounds = _conda(_read(file))
    for name, requirement in REQUIRED.items():
        if name != "fsspec" or name in bounds:  # which Dask brings
            assert requirement.specifier == bounds[name], name
    assert str(bounds["python"]) == PROJECT["project"]["requires-python"]


def test_the_recipe_is_of_this_version() -> None:
    text = _read("recipe/meta.yaml")
    assert f'version: "{PROJECT["project"]["version"]}"' in text
    assert f"license: {PROJECT['project']['license']}" in text
    (build,) = map(Requirement, PROJECT["build-system"]["requires"])
    assert f"- {build.name} {build.specifier}" in text


def test_the_image_is_made_of_what_there_is() -> None:
    text = _read("Dockerfile")
    for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
    copied = set(" ".join(re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)).split())
    # What the build reads: the page of the package, and its licence.
    project = PROJECT["project"]
    assert {project["readme"], *project["license-files"], "pyproject.toml"} <= copied
    (python,) = re.findall(r"^FROM python:(3\.\d+)-slim$", text, re.MULTILINE)
    assert python in PYTHONS
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_the_page_tells_what_is_required() -> None:
    text = _read("docs/versions.md")
    rows = re.findall(r"^\| ([\w, -]+) \| ([\d., ]+) \| ([\d.]*) ?\|$", text, re.MULTILINE)
    told = {names: (least, below) for names, least, below in rows}
    assert told.pop("Python") == (", ".join(PYTHONS), "")
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    for names, (least, below) in told.items():
        for name in names.split(", "):
            bounds = f">={least}" + (f",<{below}" if below else "")
            assert REQUIRED[name].specifier == SpecifierSet(bounds), name


def test_the_page_of_installing_lists_every_extra() -> None:
    rows = re.findall(r"^\| (`[\w, `]+`) \|", _read("docs/install.md"), re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(told) == sorted(PROJECT["project"]["optional-dependencies"])


def test_the_python_that_runs_this_is_one_that_is_named() -> None:
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in PYTHONS


def test_this_environment_is_new_enough() -> None:
    for name, requirement in REQUIRED.items():
        assert requirement.specifier.contains(Version(metadata.version(name)), prereleases=True)
