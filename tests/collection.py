"""Collecting many tests, and handing them out to sessions side by side, in little time.

pytest rewrites the assertions of each test file, which takes half of a first collection, and keeps
the result beside the file. Sessions that went through the files in the same order would rewrite
each of them at the same time, so each begins with another part, and finds the others' ready.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["keep_bytecode", "share_tests"]

_TESTS = Path(__file__).resolve().parent
_Nodes = list[pytest.Item | pytest.Collector]


def keep_bytecode() -> None:
    """Let this process and those that it starts keep bytecode, also where containers forbid it.

    The machine code that numba keeps lies in the same folders, whatever the variable says.
    """
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def share_tests(config: pytest.Config) -> None:
    """Let sessions side by side collect tests from different places on, and hand them out fast."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker:
        count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        config.pluginmanager.register(_RotatedCollection(int(worker.removeprefix("gw")), count))
    elif config.getoption("dist", "no") == "loadfile":
        config.pluginmanager.register(_FastSchedule())


class _RotatedCollection:
    """Plugin that collects the folders of tests from another one on in each session."""

    def __init__(self, index: int, count: int) -> None:
        self._index, self._count = index, count
        self._places: dict[pytest.Item | pytest.Collector, int] = {}

    def pytest_collect_directory(
        self, path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        if path != _TESTS:
            return None
        folder: _ReorderedFolder = _ReorderedFolder.from_parent(parent, path=path)
        folder.reorder = self._rotate
        return folder

    def _rotate(self, nodes: _Nodes) -> _Nodes:
        self._places = {node: place for place, node in enumerate(nodes)}
        begin = len(nodes) * self._index // self._count
        return nodes[begin:] + nodes[:begin]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the items as they would have been collected, which xdist compares."""
        last = len(self._places)
        items.sort(
            key=lambda item: next(
                (self._places[node] for node in item.iter_parents() if node in self._places), last
            )
        )


class _ReorderedFolder(pytest.Dir):
    """Folder whose files and folders are collected in another order."""

    reorder: Callable[[_Nodes], _Nodes]

    def collect(self) -> _Nodes:
        return self.reorder(list(super().collect()))


class _FastSchedule:
    """Plugin that hands files out as xdist does, without going through all tests at each one."""

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from xdist.scheduler import LoadFileScheduling

        finished: set[str] = set()

        class Scheduling(LoadFileScheduling):
            def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
                super().add_node_collection(node, collection)
                if node in self.registered_collections:
                    self.registered_collections[node] = _IndexedList(collection)

            def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
                pending = 0
                for file, tests in workload.items():
                    if file not in finished:
                        left = list(tests.values()).count(False)
                        pending += left
                        if left == 0:
                            finished.add(file)
                return pending

        return Scheduling(config, log)


class _IndexedList(list[str]):
    """List of different texts that finds each of them at once."""

    def __init__(self, texts: Iterable[str]) -> None:
        super().__init__(texts)
        self._places = {text: place for place, text in enumerate(self)}

    def index(self, text: str, *bounds: Any) -> int:
        return super().index(text, *bounds) if bounds else self._places[text]
