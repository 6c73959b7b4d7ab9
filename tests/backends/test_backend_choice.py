"""Choice of a backend by its device."""

from __future__ import annotations

from typing import Any

import pytest

from daskml_dist.backends import get_backend
from daskml_dist.backends.devices import DEVICES, gpu_problem
from daskml_dist.errors import InvalidParameterError


def test_one_instance_for_each_call() -> None:
    """An instance holds scratch arrays for a single thread."""
    assert get_backend("auto") is not get_backend("auto")
    assert get_backend("cpu").name == "numpy"
    assert get_backend("auto").name == ("numpy" if gpu_problem() else "cupy")


@pytest.mark.parametrize("wrong", ["cuda", "", None])
def test_unknown_device_lists_the_names(wrong: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        get_backend(wrong)
    assert all(f"'{device}'" in str(caught.value) for device in DEVICES)
