"""PyTorch where it is installed: loaded when a network first needs it, and its random stream."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from daskml_dist.backends.host_memory import keeping_memory
from daskml_dist.errors import InvalidParameterError

__all__ = ["check_torch", "drawing", "load_torch", "seeded", "threads_of_torch"]

#: Of the process's one random stream: modules of several threads draw from it in turn.
_STREAM = threading.Lock()


def check_torch(name: str) -> None:
    """Check that PyTorch is installed, without loading it.

    Raises
    ------
    InvalidParameterError
        Says how to install it.
    """
    if importlib.util.find_spec("torch") is None:
        raise _missing(name)


def load_torch() -> Any:
    """The module `torch`.

    Raises
    ------
    InvalidParameterError
        It is not installed in this process.
    """
    try:
        import torch
    except ImportError as error:
        raise _missing("This") from error
    return torch


def _missing(name: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"{name} needs PyTorch, which is not installed here: pip install "
        '"daskml-dist[torch]". For CPUs alone, which is far smaller, before that: pip install '
        "torch --index-url https://download.pytorch.org/whl/cpu. Every worker needs it too."
    )


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """Let torch train with so many threads meanwhile; of several fits, the last one says."""
    torch = load_torch()
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with keeping_memory():
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw torch's random numbers from a seed meanwhile; its stream is then as it was."""
    torch = load_torch()
    with _STREAM:
        before = torch.get_rng_state()
        torch.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_rng_state(before)


@contextmanager
def drawing(key: tuple[int, ...]) -> Iterator[None]:
    """Draw torch's random numbers from a stream of some rows meanwhile."""
    digest = blake2b(repr(key).encode(), digest_size=7).digest()
    with _STREAM:
        load_torch().manual_seed(int.from_bytes(digest))
        yield
