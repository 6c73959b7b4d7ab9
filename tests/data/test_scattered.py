"""Values are scattered although a worker has just died undetected."""

from __future__ import annotations

from typing import Any

import pytest

from daskml_dist.data import computing as module
from daskml_dist.data.computing import scatter_values
from daskml_dist.errors import SchedulerLostError, WorkerLostError


class Client:
    """Client whose first workers, or whose scheduler, are dead."""

    def __init__(self, errors: list[Exception], status: str = "running") -> None:
        self.errors, self.status = errors, status

    def scatter(self, value: Any, **how: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return value, how


def test_a_value_is_sent_to_another_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SCATTER_PAUSE_SECONDS", 0.0)
    client = Client([OSError("Stream is closed")] * 3)
    found = scatter_values(client, [1], everywhere=True)
    assert found == ([1], {"hash": False, "broadcast": True})


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (OSError("closed"), "closed", SchedulerLostError),
        (OSError("closed"), "running", WorkerLostError),
        (TimeoutError("no worker"), "running", TimeoutError),
        (ValueError("cannot pickle"), "running", ValueError),
    ],
)
def test_repeated_failures_raise(
    error: Exception, status: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SCATTER_SECONDS", 0.0)
    with pytest.raises(kind):
        scatter_values(Client([error] * 3, status), 1)
