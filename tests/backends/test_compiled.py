"""Functions that numba compiles: who compiles them, and who calls them."""

from __future__ import annotations

import threading
from pathlib import Path

import numba

from daskml_dist.backends.compiled import INSIDE, _take_turn, compiled_inside


def test_one_compiles_in_a_folder_while_others_wait(tmp_path: Path) -> None:
    """Locks of two opened files exclude each other in one process as they do in two."""
    folder, events = str(tmp_path / "cache"), list[str]()
    asked, first_left = threading.Event(), threading.Event()

    def second() -> None:
        asked.set()
        with _take_turn(folder):
            assert first_left.is_set()
            events.append("second")

    with _take_turn(folder):
        thread = threading.Thread(target=second)
        thread.start()
        assert asked.wait(60)
        events.append("first")
        first_left.set()
    thread.join(60)
    assert events == ["first", "second"]


def test_a_turn_needs_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (None, str(tmp_path / "file" / "below")):
        with _take_turn(folder):
            pass


def test_functions_inside_loops_stay_functions_of_python() -> None:
    """An entry for Python that is not made would end the process when it is called."""
    double = compiled_inside(error_model="numpy")(lambda x: 2 * x)
    del INSIDE[double]
    assert double(3) == 6
    assert numba.njit(lambda x: double(x) + 1)(3) == 7
