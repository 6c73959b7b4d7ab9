"""Words for a value that is none of those allowed, and nearly one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

__all__ = ["nearest"]


def nearest(value: Any, valid: Iterable[Any]) -> str:
    """End of a message: the name that was meant, or that an object of a class was; or nothing.

    Parameters
    ----------
    value : object
        What was given.
    valid : iterable
        What is allowed; its strings are names.
    """
    if isinstance(value, type):
        name = value.__name__
        return f" {name} is a class: pass an object of it, {name}()."
    if not isinstance(value, str):
        return ""
    names = {_plain(name): name for name in valid if isinstance(name, str)}
    found = get_close_matches(_plain(value), names, n=1, cutoff=0.7)
    return f" Did you mean {names[found[0]]!r}?" if found else ""


def _plain(name: str) -> str:
    """A name as it is compared: in small letters, with one kind of break."""
    return name.lower().replace("-", "_").replace(" ", "_")
