"""A crash during a save leaves a complete file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from daskml_dist.training.checkpoint import Checkpoint
from tests.subprocesses import ROOT, environment
from tests.training.checkpoints.saves import check_whole, make_state


class Crash(BaseException):
    """Error that stands for the end of the process."""


class FragileFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """File system of non-atomic operations: the one that crashes is half done, later ones fail."""

    protocol = "fragile"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    left: ClassVar[float] = float("inf")

    @classmethod
    def spend(cls, half: Callable[[], None]) -> None:
        cls.left -= 1
        if cls.left == 0:
            half()
        if cls.left <= 0:
            raise Crash

    def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        whole = super().pipe_file
        self.spend(lambda: whole(path, value[: len(value) // 2]))
        whole(path, value)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.pipe_file(path2, self.cat_file(path1))

    def rm_file(self, path: str) -> None:
        self.spend(lambda: None)
        super().rm_file(path)

    def rm(self, path: str, **kwargs: Any) -> None:
        self.rm_file(path)


@pytest.fixture
def fragile() -> Iterator[str]:
    fsspec.register_implementation("fragile", FragileFileSystem, clobber=True)
    FragileFileSystem.store.clear()
    yield "fragile://c"
    FragileFileSystem.left = float("inf")


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("second", range(1, 9, 3))
@pytest.mark.parametrize("first", range(1, 14))
def test_a_crash_at_any_operation_leaves_a_whole_file(
    fragile: str, first: int, second: int, keep: int
) -> None:
    """Also a second crash, in the save after the first."""
    saved = Checkpoint(fragile, keep=keep)
    for step in range(1, 5):
        saved.save(make_state(step), {})
    last = 4
    for operations in (first, second):
        FragileFileSystem.left = operations
        with suppress(Crash):
            saved.save(make_state(last + 1), {})
        FragileFileSystem.left = float("inf")
        assert check_whole(saved) in (last, last + 1)
        last = check_whole(saved)
    saved.save(make_state(last + 1), {})
    assert check_whole(saved) == last + 1


# Forks writers, kills each at a random moment, and checks the remaining file.
KILLER = """
import os, random, signal, struct, sys, time
from daskml_dist.training.checkpoint import Checkpoint
from tests.training.checkpoints.saves import check_whole, make_state

path, moments = sys.argv[1], random.Random(0)
for keep in (1, 2):
    saved, step = Checkpoint(path, keep=keep), 1
    for _ in range(10):
        done, tell = os.pipe()
        if not (child := os.fork()):
            while True:
                saved.save(make_state(step, n=20_000), {})
                os.write(tell, struct.pack("q", step))
                step += 1
        os.read(done, 8)
        time.sleep(moments.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(tell)
        reported = [step, *(n for n, in struct.iter_unpack("q", os.read(done, 1 << 16)))]
        os.close(done)
        step = check_whole(saved)
        assert reported[-1] <= step <= reported[-1] + 1, (reported, step)
        print("whole", step, sorted(os.listdir(os.path.dirname(path))), flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path / "c")],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
        env=environment(OPENBLAS_NUM_THREADS="1"),
    )
    assert killed.returncode == 0, killed.stderr
    assert killed.stdout.count("whole") == 20
