"""Arenas, undisturbed fits to compare with, and a table of all faults at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks._hosts import network_problem
from chaos.arenas import Arena, KilledArena, NetworkArena, ProcessArena
from chaos.faults import Striker
from chaos.pipelines import PairArena

_struck: list[Striker] = []


def _opened(arena: Arena) -> Iterator[Arena]:
    arena.start()
    yield arena
    arena.close()


@pytest.fixture(scope="class")
def processes() -> Iterator[Arena]:
    """Open three worker processes."""
    yield from _opened(ProcessArena())


@pytest.fixture(scope="class")
def killed() -> Iterator[Arena]:
    """Open three worker processes that are restarted whenever they are killed."""
    yield from _opened(KilledArena())


@pytest.fixture(scope="class")
def pair() -> Iterator[Arena]:
    """Open two worker processes that are restarted whenever they are killed."""
    yield from _opened(PairArena())


@pytest.fixture(scope="class")
def network() -> Iterator[Arena]:
    """Open three workers in network namespaces."""
    if problem := network_problem():
        pytest.skip(f"no network namespaces: {problem}")
    yield from _opened(NetworkArena())


@pytest.fixture(scope="session")
def undisturbed() -> dict[Any, Any]:
    """Return undisturbed fits, by policy and number of passes."""
    return {}


@pytest.fixture
def note() -> Callable[[Striker], None]:
    """Return a function that adds a fault to the table."""
    return _struck.append


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print, for each kind and policy, the faults and the seconds to the first new generation."""
    if not _struck:
        return
    cells: dict[tuple[str, str], list[Striker]] = defaultdict(list)
    for striker in _struck:
        cells[striker.fault.kind, striker.fault.policy].append(striker)
    kinds = sorted({kind for kind, _ in cells})
    policies = sorted({policy for _, policy in cells})
    terminalreporter.section("faults: count, median and longest seconds to a new generation")
    terminalreporter.write_line(" " * 15 + "".join(f"{policy:>16}" for policy in policies))
    for kind in kinds:
        row = "".join(f"{_cell(cells[kind, policy]):>16}" for policy in policies)
        terminalreporter.write_line(f"{kind:15}{row}")
    missed = [striker.fault.seed for striker in _struck if striker.struck_at is None]
    if missed:
        terminalreporter.write_line(f"fits that ended before their fault: seeds {missed}")


def _cell(strikers: list[Striker]) -> str:
    waits = [striker.generations[0][0] for striker in strikers if striker.generations]
    if not waits:
        return f"{len(strikers)}" if strikers else "."
    return f"{len(strikers)} {np.median(waits):.2f} {max(waits):.2f}"
