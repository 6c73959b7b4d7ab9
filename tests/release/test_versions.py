"""Version requirements in several places agree with pyproject.toml."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize("file", ["recipe/recipe.yaml", "environment.yml"])
def test_conda_asks_for_the_same_versions(file: str) -> None:
    bounds = _conda(_read(file))
    for name, requirement in REQUIRED.items():
        if name != "fsspec" or name in bounds:  # which Dask brings
            assert requirement.specifier == bounds[name], name
    assert str(bounds["python"]) == PROJECT["project"]["requires-python"]


def test_the_recipe_is_of_this_version() -> None:
    text = _read("recipe/recipe.yaml")
    assert f'version: "{PROJECT["project"]["version"]}"' in text
    assert f"license: {PROJECT['project']['license']}" in text
    (build,) = map(Requirement, PROJECT["build-system"]["requires"])
    assert f"- {build.name} {build.specifier}" in text


def test_conda_renders_the_recipe() -> None:
    rattler = pytest.importorskip("rattler_build", reason="py-rattler-build is not installed")
    (variant,) = rattler.Stage0Recipe.from_file(ROOT / "recipe" / "recipe.yaml").render()
    recipe, project = variant.recipe, PROJECT["project"]
    assert (recipe.package.name, str(recipe.package.version)) == ("daskml-dist", project["version"])
    assert recipe.build.noarch == "python"
    assert len(recipe.requirements.run) == 1 + len(REQUIRED)  # and Python


def test_the_image_copies_existing_files() -> None:
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


def test_the_page_lists_the_requirements() -> None:
    text = _read("docs/versions.md")
    rows = re.findall(r"^\| ([\w, -]+) \| ([\d., ]+) \| ([\d.]*) ?\|$", text, re.MULTILINE)
    listed = {names: (least, below) for names, least, below in rows}
    assert listed.pop("Python") == (", ".join(PYTHONS), "")
    assert PROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    for names, (least, below) in listed.items():
        for name in names.split(", "):
            bounds = f">={least}" + (f",<{below}" if below else "")
            assert REQUIRED[name].specifier == SpecifierSet(bounds), name


def test_the_page_of_installing_lists_every_extra() -> None:
    rows = re.findall(r"^\| (`[\w, `]+`) \|", _read("docs/install.md"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(PROJECT["project"]["optional-dependencies"])


def test_the_python_that_runs_this_is_one_that_is_named() -> None:
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in PYTHONS


def test_this_environment_is_new_enough() -> None:
    for name, requirement in REQUIRED.items():
        assert requirement.specifier.contains(Version(metadata.version(name)), prereleases=True)


def test_modules_import_only_requirements() -> None:
    """Packages of extras are imported only where they are used."""
    brought = {name.replace("-", "_").replace("scikit_learn", "sklearn") for name in REQUIRED}
    # What Dask and numba require themselves, and this package.
    brought |= {"daskml_dist", "llvmlite", "packaging", "toolz", "tornado"}
    known = brought | set(sys.stdlib_module_names)
    others = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "daskml_dist").rglob("*.py"))
        if "serving" not in path.parts  # which is imported where its extra is installed
        for name in _list_imports(ast.parse(path.read_text(encoding="utf-8")).body)
        if name not in known
    }
    assert not others


def _list_imports(body: list[ast.stmt]) -> list[str]:
    """Return the packages that a module imports when it is imported."""
    names = []
    for line in body:
        if isinstance(line, ast.Import):
            names += [alias.name.partition(".")[0] for alias in line.names]
        elif isinstance(line, ast.ImportFrom) and not line.level:
            names.append(str(line.module).partition(".")[0])
    return names
