"""Names of columns, of which no two may be alike."""

from __future__ import annotations

from typing import Any

from dask.utils import is_dataframe_like

from daskml_dist.errors import InvalidDataError

__all__ = ["check_unique_names"]


def check_unique_names(X: Any) -> None:
    """Check that no two columns of a dataframe have one name: columns are found by it.

    Parameters
    ----------
    X : pandas.DataFrame, dask DataFrame, or any other rows, which have no names

    Raises
    ------
    InvalidDataError
    """
    if not is_dataframe_like(X) or X.columns.is_unique:
        return
    alike = X.columns[X.columns.duplicated()].unique().tolist()
    raise InvalidDataError(
        f"Expected unique column names: several columns of the dataframe are called {alike}. Give "
        "each a name of its own (X.columns = [...]), or keep the first of each: "
        "X.loc[:, ~X.columns.duplicated()]."
    )
