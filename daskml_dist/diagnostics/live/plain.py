"""Records as plain numbers, which any process reads."""

from __future__ import annotations

from typing import Any

__all__ = ["plain"]


def plain(record: dict[str, Any]) -> dict[str, Any]:
    """A record's numbers, texts and lists, without NumPy's types; other values are left out."""
    values = {key: getattr(value, "item", lambda v=value: v)() for key, value in record.items()}
    return {
        k: v
        for k, v in values.items()
        if v is None or isinstance(v, int | float | str | list | tuple)
    }
