"""Settings in Dask's configuration that have no meaning are refused with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

from daskml_dist.data.computing import configured_number
from daskml_dist.errors import InvalidParameterError
from daskml_dist.linear_model import LogisticRegression
from daskml_dist.metrics import accuracy_score
from daskml_dist.planning.costs import cache_file
from daskml_dist.training.spec import configured_connections


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


@pytest.mark.parametrize("value", ["maybe", "", 2, 0.5, []])
def test_settings_that_are_neither_on_nor_off_are_refused(value: Any) -> None:
    with (
        dask.config.set({"daskml_dist.shared_memory": value}),
        pytest.raises(InvalidParameterError, match=r"shared_memory .* must be true or false"),
    ):
        configured_connections()


def test_flags_in_any_form_are_settings() -> None:
    for value, flag in [("no", False), ("Off", False), (0, False), ("yes", True), (None, True)]:
        with dask.config.set(
            {"daskml_dist.shared_memory": value, "daskml_dist.planning.cache": value}
        ):
            assert configured_connections().shared_memory is flag
            assert (cache_file() is not None) is flag


@pytest.mark.parametrize(
    ("name", "value", "call"),
    [
        ("client", "inline", lambda y: LogisticRegression().fit(np.eye(8), y)),
        ("verbose", "yes", lambda y: accuracy_score(y, da.from_array(y))),
    ],
)
def test_other_settings_without_a_meaning_are_refused(
    name: str, value: Any, call: Callable[[Any], Any]
) -> None:
    with (
        dask.config.set({f"daskml_dist.{name}": value}),
        pytest.raises(InvalidParameterError, match=f"daskml_dist.{name} of Dask's"),
    ):
        call(np.arange(8) % 2)


def test_numbers_in_any_form_are_settings() -> None:
    for value, number in [(2, 2.0), (0.5, 0.5), ("3", 3.0), (np.int64(4), 4.0), (None, 9.0)]:
        with dask.config.set({"daskml_dist.timeout": value}):
            assert configured_number("daskml_dist.timeout", 9.0) == number
