"""A collection gives the same results as the same rows in memory."""

from __future__ import annotations

from typing import Any

import pytest
from distributed import Client

pytest.importorskip("hypothesis", reason="Hypothesis is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contracts.cases import CONTAINERS, cases
from tests.contracts.graphs import ARRAY_SOURCES, ARRAY_STEPS, FRAME_SOURCES, FRAME_STEPS
from tests.contracts.report import drawn, fail_simplest
from tests.contracts.same_rows import check
from tests.contracts.settings import ELSEWHERE, SETTINGS
from tests.contracts.subjects import SUBJECTS, public_names
from tests.quick import in_turn, quick

IN_MEMORY = [name for name, kind in CONTAINERS.items() if kind == "memory"]
WITH_TARGETS = [name for name, s in SUBJECTS.items() if s.is_metric or hasattr(s.model, "predict")]
ARRAYS = [name for name, kind in CONTAINERS.items() if kind == "array"]
IN_ARRAYS = [name for name in SUBJECTS if not SUBJECTS[name].needs_names]


def _same(data: Any, **options: Any) -> None:
    case = data.draw(cases(**options))
    if check(case):
        fail_simplest(case, check, "tests.contracts.same_rows")


def test_every_public_name_is_a_subject() -> None:
    found = {name.rstrip(" 0123456789") for name in SUBJECTS}
    assert public_names() <= found | ELSEWHERE.keys()
    assert SETTINGS.keys() | ELSEWHERE.keys() <= public_names()


@pytest.mark.parametrize("subject", SUBJECTS)
@settings(drawn, max_examples=1)
@given(data=st.data())
def test_rows_in_memory(subject: str, data: Any) -> None:
    _same(data, subjects=[subject], container=data.draw(st.sampled_from(IN_MEMORY)))


@pytest.mark.parametrize("step", quick(FRAME_STEPS, "shuffled", "sorted"))
@settings(drawn, max_examples=1)
@given(data=st.data())
def test_steps_of_frames(step: str, data: Any) -> None:
    _same(data, subjects=WITH_TARGETS, container="frame", step=step)


@pytest.mark.parametrize("source", FRAME_SOURCES)
@settings(drawn, max_examples=1)
@given(data=st.data())
def test_sources_of_frames(source: str, data: Any) -> None:
    _same(data, container="frame", source=source)


@pytest.mark.parametrize(
    "step",
    # Streamed graphs and graphs of frames cover the others.
    quick(
        ARRAY_STEPS,
        "column chunks",
        "sorted by target",
        "single rows",
        "sliced",
        "filtered",
        "parts persisted",
        "transformed",
        "fused",
    ),
)
@settings(drawn, max_examples=1)
@given(data=st.data())
def test_steps_of_arrays(step: str, data: Any) -> None:
    _same(data, container="array", step=step)


@pytest.mark.parametrize(("source", "container"), in_turn(ARRAY_SOURCES, ARRAYS))
@settings(drawn, max_examples=1)
@given(data=st.data())
def test_sources_of_arrays(source: str, container: str, data: Any) -> None:
    _same(data, container=container, source=source)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["sorted by target", "single rows"])
@pytest.mark.parametrize("subject", IN_ARRAYS)
@settings(drawn, max_examples=1)
@given(data=st.data())
def test_sorted_targets_and_blocks_of_one_row(subject: str, step: str, data: Any) -> None:
    """Every estimator and metric with blocks that lack classes or have no variance."""
    _same(data, subjects=[subject], container="array", step=step)


@pytest.mark.parametrize("container", quick(["frame", "array"], "frame"))
@settings(drawn, max_examples=1)
@given(data=st.data())
def test_with_a_client(client: Client, container: str, data: Any) -> None:
    _same(data, container=container, client=True)
