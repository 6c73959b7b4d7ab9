"""Settings in Dask's configuration that are no numbers are refused with a remedy."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist.data.computing import configured_number
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import LogisticRegression


@pytest.mark.parametrize("value", ["30s", "", True, -1, float("nan"), [1]])
@pytest.mark.parametrize("name", ["timeout", "lease", "standby_lag", "ranges_from"])
def test_settings_that_are_no_numbers_are_refused(client: Client, name: str, value: Any) -> None:
    X = da.from_array(np.eye(8), chunks=(4, -1))
    y = da.from_array(np.arange(8) % 2, chunks=4)
    setting = f"daskml_dist.{name}"
    with (
        dask.config.set({setting: value}),
        pytest.raises(InvalidParameterError, match=rf"{setting} .* must be a number"),
    ):
        LogisticRegression().fit(X, y)


def test_numbers_in_any_form_are_settings() -> None:
    for value, number in [(2, 2.0), (0.5, 0.5), ("3", 3.0), (np.int64(4), 4.0), (None, 9.0)]:
        with dask.config.set({"daskml_dist.timeout": value}):
            assert configured_number("daskml_dist.timeout", 9.0) == number
