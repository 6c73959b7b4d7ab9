"""Canaries: each undocumented name of Dask that the package uses is where it was.

A test that fails here names what of the package stops working with the installed release. How the
names behave is tested beside this file, and in `tests/data/test_row_alignment.py` and
`tests/data/test_parquet.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import dask
import pytest

import daskml_dist

ROOT = Path(daskml_dist.__file__).parent

#: Modules with names documented by Dask and distributed; a name that begins with an underscore is
#: undocumented wherever it is.
DOCUMENTED = {
    "dask", "dask.array", "dask.bag", "dask.base", "dask.dataframe", "dask.delayed",
    "dask.highlevelgraph", "dask.sizeof", "dask.tokenize", "dask.utils", "distributed",
}  # fmt: skip

#: What of the package stops working when a name moves.
USES = {
    "dask._collections.new_collection": "lazy predictions of dataframes",
    "dask._expr.Expr": "fits and predictions of dask dataframes",
    "dask._expr.LLGExpr": "every fit on a cluster: its tasks are submitted in one message",
    "dask._expr._ExprSequence": "fits of dask dataframes: X and y are lowered together",
    "dask._expr.optimize_until": "fits of repartitioned dask dataframes",
    "dask._task_spec.Alias": "fits of lists of delayed blocks and of persisted dataframes",
    "dask._task_spec.DataNode": "blocks that are made again from persisted data",
    "dask._task_spec.GraphNode": "blocks that are made again, in a pass or after a loss",
    "dask._task_spec.Task": "every fit on a cluster",
    "dask._task_spec.TaskRef": "statistics of all rows, reads of Parquet, lazy predictions",
    "dask._task_spec.convert_legacy_graph": "blocks that are made again; ratings and graphs",
    "dask._task_spec.convert_legacy_task": "the check that shuffled rows of X and y match",
    "dask._task_spec.parse_input": "every fit on a cluster",
    "dask.blockwise.Blockwise": "the check that shuffled rows of X and y match",
    "dask.core.flatten": "lazy predictions",
    "dask.dataframe.dask_expr._expr.Blockwise": "fits of shuffled dask dataframes",
    "dask.dataframe.dask_expr._expr.Fused": "fits of dataframes that df.optimize() returned",
    "dask.dataframe.dask_expr._expr.Projection": "row counts of tables that are read by tasks",
    "dask.dataframe.dask_expr.io.io.FromMap": "row counts of tables that are read by tasks",
    "dask.dataframe.dask_expr.io.io.FromGraph": "fits of shuffled dask dataframes",
    "dask.dataframe.io.parquet.arrow.ArrowDatasetEngine": "the fast read of Parquet files",
    "dask.dataframe.io.parquet.core.ParquetFunctionWrapper": "the fast read of Parquet files",
    "dask.layers.ArrayBlockIdDep": "lazy predictions and pairwise distances",
    "dask.local.get_sync": "blocks that are made again, in a pass or after a loss",
    "distributed.comm.addressing.get_address_host": "where servers of a fit listen",
    "distributed.core._expects_comm": "freed memory after lazy rows were fitted without a client",
    "distributed.dashboard.components.scheduler.BOKEH_THEME": "the page in Dask's dashboard",
    "distributed.dashboard.components.scheduler.env": "the page in Dask's dashboard",
    "distributed.dashboard.core.BokehApplication": "the page in Dask's dashboard",
    "distributed.dashboard.scheduler.template_variables": "the page in Dask's dashboard",
    "distributed.protocol.cuda.cuda_deserialize": "blocks on GPUs that travel by ucx",
    "distributed.protocol.cuda.cuda_serialize": "blocks on GPUs that travel by ucx",
    "distributed.protocol.pickle": "the work that trainers are sent",
    "distributed.protocol.serialize.deserialize": "blocks on GPUs that travel by ucx",
    "distributed.protocol.serialize.serialize": "blocks on GPUs that travel by ucx",
    "distributed.scheduler.KilledWorker": "recovery of tasks that Dask gave up",
    "distributed.spans.SpanMetadata": "every fit on a cluster",
    "distributed.system.MEMORY_LIMIT": "LinearRegression and Ridge with many features",
}

#: Attributes that the package reads, by the class that has them.
ATTRIBUTES = {
    "distributed.Client._graph_to_futures": "every fit on a cluster",
    "distributed.Client._send_to_scheduler": "data that a worker holds, asked for by its key",
    "distributed.Nanny.pid": "patience with workers that are busy, and not stopped",
    "distributed.Worker._initialized_clients": "fits inside tasks",
    "distributed.scheduler.Scheduler.remove_worker": "recovery from a worker that hangs",
    "distributed.scheduler.Scheduler.set_restrictions": "recovery of tasks on paused workers",
    "distributed.scheduler.Scheduler.stimulus_retry": "recovery of tasks that Dask gave up",
    "distributed.scheduler.Scheduler.transitions": "recovery of tasks on paused workers",
}


def _imported(path: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of each import from Dask, anywhere in a file."""
    text = path.read_text()
    if not re.search(r"\b(dask|distributed)\b", text):
        return  # skips most modules, since parsing them takes a second
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module.partition(".")[0] in ("dask", "distributed"):
                yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in ("dask", "distributed"):
                    yield alias.name, ""


def _is_undocumented(module: str, name: str) -> bool:
    return module not in DOCUMENTED or name.startswith("_")


@pytest.mark.parametrize("name", [*USES, *ATTRIBUTES])
def test_an_undocumented_name_is_there(name: str) -> None:
    if "dashboard" in name:
        pytest.importorskip("bokeh", reason="no bokeh: pip install 'daskml-dist[viz]'")
    use = {**USES, **ATTRIBUTES}[name]
    place, _, attribute = name.rpartition(".")
    try:
        if name in ATTRIBUTES:
            module, _, kind = place.rpartition(".")
            found = getattr(import_module(module), kind)
        else:
            found = import_module(place)
        exists = hasattr(found, attribute) or bool(import_module(name))
    except (ImportError, AttributeError):
        exists = False
    assert exists, f"Dask {dask.__version__} has no {name}: what needs it is {use}."


def test_no_other_room_imports_an_undocumented_name() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {module}.{name}".rstrip(".")
        for path in ROOT.rglob("*.py")
        if path.parent.name != "dask_internals"
        for module, name in _imported(path)
        if _is_undocumented(module, name)
    }
    assert not found


def test_each_undocumented_name_has_a_canary() -> None:
    names = {
        f"{module}.{name}"
        for path in (ROOT / "dask_internals").glob("*.py")
        for module, name in _imported(path)
        if _is_undocumented(module, name)
    }
    assert names == set(USES)
