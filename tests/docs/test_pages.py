"""Every code block of the pages and the README runs, page by page, in the order of the reader."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

from daskml_dist.cli import COMMANDS as COMMANDS_OF_CLI
from tests.docs.blocks import PAGES, ROOT, Block, blocks
from tests.docs.stand_ins import ELSEWHERE, STAND_INS

PYTHON = {name: found for name, page in PAGES.items() if (found := blocks(page, "python"))}

#: Packages of extras; without them, blocks that import them and all later ones are skipped.
OPTIONAL = {"matplotlib", "onnxruntime", "skl2onnx", "torch"}
#: What a block needs beside its own imports.
USES = {
    ".to_onnx(": {"onnxruntime", "skl2onnx"},
    ".plot(": {"matplotlib"},
    "plots.": {"matplotlib"},
    "Display": {"matplotlib"},
}
#: Number of blocks that each page may exclude from running.
NOT_RUN = {
    "docs/coming_from.md": 1,
    "docs/coming_from_trees.md": 1,
    "docs/data.md": 1,
    "docs/export.md": 4,
    "docs/gpu.md": 4,
    "docs/hpc.md": 1,
    "docs/integrations.md": 2,
    "docs/streams.md": 1,
}


def _missing(block: Block) -> set[str]:
    """Packages of extras that a block needs and that are not here."""
    named = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(block.code))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
        )
        if name is not None
    }
    for text, packages in USES.items():
        named |= packages if text in block.code else set()
    return {name for name in named & OPTIONAL if importlib.util.find_spec(name) is None}


def _run(block: Block, name: str, names: dict[str, Any]) -> None:
    """Run a block like a notebook cell: its last expression is evaluated and displayed."""
    tree = ast.parse(block.code, f"{name}, block at line {block.line}")
    ast.increment_lineno(tree, block.line - 1)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if last is not None:
        dask.compute(eval(compile(ast.Expression(last.value), name, "eval"), names))


@pytest.fixture
def page_names(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """Names of a page's blocks; its clusters listen on the loopback alone, and end with it."""

    begin, opened = Client.__init__, []

    def begin_on_loopback(self: Client, *arguments: Any, **options: Any) -> None:
        opened.append(self)
        begin(self, *arguments, **{"dashboard_address": "127.0.0.1:0", **options})

    # Not the class, since modules first imported here keep references to it.
    monkeypatch.setattr(Client, "__init__", begin_on_loopback)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    yield names
    for value in list(names.values()):
        if any(value is one for one in opened):
            value.close()
    names.clear()
    if importlib.util.find_spec("matplotlib") is not None:
        import matplotlib.pyplot

        matplotlib.pyplot.close("all")


def test_the_class_of_clients_is_distributeds(page_names: dict[str, Any]) -> None:
    exec("from distributed import Client", page_names)
    assert page_names["Client"] is Client


def test_every_page_with_code_is_run() -> None:
    assert {*STAND_INS, *ELSEWHERE} == set(PYTHON)
    assert not set(STAND_INS) & set(ELSEWHERE)
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())


def test_excluded_blocks_are_marked_and_counted() -> None:
    marked = {name: sum(b.not_run is not None for b in found) for name, found in PYTHON.items()}
    assert {name: n for name, n in marked.items() if n} == NOT_RUN
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES.values())
    assert texts.count("<!-- not run:") == sum(NOT_RUN.values())  # none stands before no block


def test_excluded_blocks_import_existing_names() -> None:
    for found in PYTHON.values():
        for block in (block for block in found if block.not_run is not None):
            for node in ast.walk(ast.parse(block.code)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("daskml_dist"):
                    exec(compile(ast.Module([node], []), "imports", "exec"), {})


def test_pages_import_only_names_in_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that users copy must be stable between releases, unlike internal ones."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    reference = importlib.import_module("reference_pages")
    subpackages = {f"daskml_dist.{r}".rstrip(".") for rs in reference.groups().values() for r in rs}
    subpackages |= {
        subpackage.rpartition(".")[0] for subpackage in subpackages
    }  # `from daskml_dist.x import y`
    subpackages |= {"daskml_dist.backends.namespace", "daskml_dist.inference.mlflow"}
    for name, found in PYTHON.items():
        for node in (n for block in found for n in ast.walk(ast.parse(block.code))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("daskml_dist"):
                assert node.module in subpackages - {"daskml_dist.training"}, (name, node.module)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if g.slow else ()) for n, g in STAND_INS.items()],
)
def test_blocks_of_the_page(name: str, page_names: dict[str, Any]) -> None:
    page_names |= STAND_INS[name].names(Path.cwd(), np.random.default_rng(0))
    for block in PYTHON[name]:
        if block.not_run is not None:
            continue
        if missing := _missing(block):
            pytest.skip(f"no {', '.join(sorted(missing))} for the blocks from line {block.line} on")
        _run(block, name, page_names)


# --- commands ----------------------------------------------------------------------------------


def _extras(command: str) -> None:
    """Check that every extra in a pip command is one of the package's."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for found in re.findall(r"(?:^|[\s\".])(?:daskml-dist|\.)\[([\w,]+)\]", command):
        assert set(found.split(",")) <= set(known), found


def _script(command: str) -> None:
    """Check that an example exists and has each option of the command."""
    path, *rest = command.split()
    text = (ROOT / path).read_text(encoding="utf-8")
    for option in (word for word in rest if word.startswith("--")):
        assert f'"{option}"' in text, option


def _command_line(command: str) -> None:
    """There is such a command, with each option that the line gives it."""
    name, *rest = command.split()
    assert name in COMMANDS_OF_CLI
    texts = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "daskml_dist/cli").glob("*.py"))
    for option in (word for word in rest if word.startswith("--")):
        assert f'"{option}"' in texts, option


def _benchmark(name: str) -> None:
    assert (ROOT / "benchmarks" / f"{name}.py").is_file(), name


def _file(command: str) -> None:
    assert (ROOT / command.split("-f ")[1]).is_file()


#: What is checked of a command, by how it begins. Those without a check have a step of `.ci/run`.
COMMANDS: dict[str, Callable[[str], None] | None] = {
    "pip install ": _extras,
    "python examples/": lambda command: _script(command.removeprefix("python ")),
    "python -m daskml_dist ": lambda c: _command_line(c.removeprefix("python -m daskml_dist ")),
    "conda env create ": _file,
    "rattler-build build ": None,  # tests/release
    "docker build ": None,
    "pytest": None,
    "ruff ": None,
    "mypy": None,
    "lint-imports": None,
    "sphinx-build ": None,
    "pre-commit install": None,
    "bash .ci/run": None,
    "bash .ci/newest": None,
    "python -m benchmarks ": lambda command: _benchmark(command.split()[3]),
}


def test_commands_use_existing_scripts_and_options() -> None:
    for name, page in PAGES.items():
        for block in [*blocks(page, "bash"), *blocks(page, "")]:
            lines = re.sub(r"\\\n\s*", "", block.code).splitlines()
            commands = [c.strip() for line in lines for c in line.split("#")[0].split("&&")]
            for command in filter(None, commands):
                checks = [check for begin, check in COMMANDS.items() if command.startswith(begin)]
                assert checks, f"{name}: nobody checks {command!r}"
                for check in filter(None, checks):
                    check(command)
