"""Packages that only some inputs need."""

from __future__ import annotations

from typing import Any

from daskml_dist.errors import InvalidDataError

__all__ = ["load_pandas"]


def load_pandas() -> Any:
    """pandas, which rows in memory do without.

    Raises
    ------
    InvalidDataError
        It is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise InvalidDataError(
            'This needs pandas: pip install "daskml-dist[dataframe]".'
        ) from error
    return pandas
