"""Functions that numba compiles: locking of compilation, and substitution of parts."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import caching

from daskml_dist.backends.compiled import (
    INSIDE,
    _take_turn,
    _warn_of_no_cache,
    compiled_entry,
    compiled_inside,
    compiled_with,
)
from daskml_dist.backends.tree_kernels import compiled_search
from daskml_dist.backends.vector_tree_kernels import compiled_vector_search


def test_one_process_compiles_while_others_wait(tmp_path: Path) -> None:
    """Locks of two open files exclude each other in one process as in two."""
    folder, events = str(tmp_path / "cache"), list[str]()
    second_waits, first_left = threading.Event(), threading.Event()

    def second() -> None:
        second_waits.set()
        with _take_turn(folder):
            assert first_left.is_set()
            events.append("second")

    with _take_turn(folder):
        thread = threading.Thread(target=second)
        thread.start()
        assert second_waits.wait(60)
        events.append("first")
        first_left.set()
    thread.join(60)
    assert events == ["first", "second"]


def test_the_compilation_lock_needs_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (None, str(tmp_path / "file" / "below")):
        with _take_turn(folder):
            pass


def _double(x: float) -> float:
    return 2 * x


@pytest.mark.parametrize("why", ["no folder for it is writable", "No space left on device"])
def test_code_is_compiled_where_it_cannot_be_kept(
    why: str, monkeypatch: pytest.MonkeyPatch, user_log: pytest.LogCaptureFixture
) -> None:
    """As in containers, where numba refuses to decorate, and in home folders at their quota."""

    def save(*_: Any) -> None:
        raise OSError(errno.ENOSPC, why)

    _warn_of_no_cache.cache_clear()
    if why.startswith("no folder"):
        monkeypatch.setattr(caching.FunctionCache._impl_class, "_locator_classes", [])
    monkeypatch.setattr(caching.IndexDataCacheFile, "save", save)
    assert compiled_entry()(_double)(3) == 6
    assert compiled_entry()(_double)(3.0) == 6
    assert user_log.text.count(why) == user_log.text.count("NUMBA_CACHE_DIR") == 1


@pytest.mark.parametrize("make", [compiled_search, compiled_vector_search])
def test_a_search_compiled_by_another_thread_is_reused(make: Any) -> None:
    """`functools.cache` lets concurrent threads all compute the value."""
    assert make.__wrapped__(False) is make.__wrapped__(False)


def test_functions_inside_loops_stay_callable_from_python() -> None:
    """A missing Python entry point would crash the process when called."""
    double = compiled_inside(error_model="numpy")(lambda x: 2 * x)
    del INSIDE[double]
    assert double(3) == 6
    assert numba.njit(lambda x: double(x) + 1)(3) == 7


def test_a_part_replaces_the_placeholder_that_the_loop_calls() -> None:
    """A part under another name would be ignored, and the placeholder compiled instead."""

    def twice(x: float) -> float:
        return _step(_step(x))  # type: ignore[name-defined, no-any-return]  # noqa: F821

    with pytest.raises(TypeError, match="twice calls no _steps"):
        compiled_with(twice, _steps=abs)
