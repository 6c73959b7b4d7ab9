"""References within a file of skops: parts that are told once and used at several places."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable
from typing import Any

from daskml_dist.errors import ModelFileError

__all__ = ["check_references"]

_ID = "__id__"
#: Parts that are looked at, each as often as it is used, and more by those that the file tells.
_LEAST, _MOST = 20_000, 50


def check_references(archive: bytes, name: str) -> None:
    """Refuse a file whose parts are used so often that looking at all would never end.

    skops looks at a part wherever it is used, before it makes anything. Of lists that hold the
    one before them twice, forty are as many as a million million parts.
    """
    with zipfile.ZipFile(io.BytesIO(archive)) as whole:
        schema = json.loads(whole.read("schema.json"))
    parts = list(_parts(schema))
    if _Uses(parts).of(schema) > _LEAST + _MOST * len(parts):
        raise ModelFileError(
            f"{name} is damaged: its parts hold each other more often than those of any estimator. "
            "Save the model again, or restore the file from a copy."
        )


def _parts(told: Any) -> Iterable[dict[str, Any]]:
    if isinstance(told, dict):
        yield told
        told = told.values()
    elif not isinstance(told, list):
        return
    for one in told:
        yield from _parts(one)


class _Uses:
    """Parts that are met in a part and in all that it refers to, each as often as it is used."""

    def __init__(self, parts: list[dict[str, Any]]) -> None:
        self._known: dict[Any, int] = {}
        self._of_id: dict[Any, list[dict[str, Any]]] = {}
        for part in parts:
            self._of_id.setdefault(_key(part), []).append(part)

    def of(self, told: Any) -> int:
        """Number of parts."""
        if isinstance(told, list):
            return sum(map(self.of, told))
        if not isinstance(told, dict):
            return 0
        key = _key(told)
        if key is None:
            return 1 + self.of([*told.values()])
        if key not in self._known:
            self._known[key] = -1
            # Which of those that have this number is meant depends on who reads: the largest.
            self._known[key] = max(1 + self.of([*one.values()]) for one in self._of_id[key])
        if self._known[key] < 0:
            raise ValueError(f"part {key} holds itself")
        return self._known[key]


def _key(part: dict[str, Any]) -> str | None:
    number = part.get(_ID)
    return str(number) if number else None  # as skops does, and of whatever type
