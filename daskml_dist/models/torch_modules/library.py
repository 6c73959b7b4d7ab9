"""PyTorch, an optional dependency, imported when a network first needs it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from daskml_dist.backends.host_memory import keep_freed_memory
from daskml_dist.errors import InvalidParameterError


def check_torch(name: str) -> None:
    """Raise `InvalidParameterError` if PyTorch is not installed; does not import it."""
    # Finding the module is fast; importing it is slow.
    if importlib.util.find_spec("torch") is None:
        raise _make_missing_error(name)


def load_torch() -> Any:
    """Return the module `torch`; raise `InvalidParameterError` if it cannot be imported."""
    try:
        import torch
    except ImportError as error:
        # Another module's name: torch is installed, but a library that it needs is not.
        if error.name == "torch":
            raise _make_missing_error("This") from error
        raise InvalidParameterError(
            f"PyTorch is installed here and cannot be imported: {error}. Install what is "
            "missing, or reinstall PyTorch."
        ) from error
    return torch


def _make_missing_error(name: str) -> InvalidParameterError:
    return InvalidParameterError(
        f'{name} needs PyTorch, which is not installed here: pip install "daskml-dist[torch]". '
        "For a much smaller CPU-only build, first run: pip install torch --index-url "
        "https://download.pytorch.org/whl/cpu. Every worker needs it too."
    )


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """Limit torch to `count` threads while the context is open.

    The limit is global to the process: of several fits side by side, the last one decides.
    """
    torch = load_torch()
    old_n_threads = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with keep_freed_memory():
            yield
    finally:
        torch.set_num_threads(old_n_threads)
