"""Arrays that no kernel may write beyond."""

from __future__ import annotations

import pytest

from tests.backends.kernel_problems import Guarded


@pytest.fixture
def guarded():
    """Puts arrays amid sentinels, and checks these in the end."""
    guarded = Guarded()
    yield guarded
    guarded.check()
