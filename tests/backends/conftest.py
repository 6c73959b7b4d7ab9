"""Arrays with guards that detect writes of kernels beyond their ends."""

from __future__ import annotations

import pytest

from tests.backends.kernel_problems import Guarded


@pytest.fixture
def guarded():
    """Surround arrays with sentinels, and check these at the end."""
    guarded = Guarded()
    yield guarded
    guarded.check()
