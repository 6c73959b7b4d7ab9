"""Values sent to workers of which one has just died, and nobody has noticed."""

from __future__ import annotations

from typing import Any

import pytest

from daskml_dist.data import computing as module
from daskml_dist.data.computing import scatter_values
from daskml_dist.errors import SchedulerLostError, WorkerLostError


class Client:
    """A client whose first workers are dead, or its scheduler."""

    def __init__(self, errors: list[Exception], status: str = "running") -> None:
        self.errors, self.status = errors, status

    def scatter(self, value: Any, **how: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return value, how


def test_another_worker_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_does_not_end_by_itself_is_told(
    error: Exception, status: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SCATTER_SECONDS", 0.0)
    with pytest.raises(kind):
        scatter_values(Client([error] * 3, status), 1)
