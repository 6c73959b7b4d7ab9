"""Base class of callbacks that keep something during a fit."""

from __future__ import annotations

from typing import Any, Self

__all__ = ["FitCallback", "numbers_of"]


class FitCallback:
    """Base class of callbacks with something of a fit's own, such as an open file.

    Estimators are cloned and pickled with their callbacks: a copy has the parameters alone. Two
    fits at a time need two callbacks.
    """

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(**self.__getstate__())

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.__getstate__().items())
        return f"{type(self).__name__}({given})"


def numbers_of(record: dict[str, Any]) -> dict[str, float]:
    """Numbers of a record but its pass; those that were not measured are left out."""
    return {key: value for key, value in record.items() if key != "pass" and value is not None}
