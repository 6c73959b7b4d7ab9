"""Servers under attack, with TLS and without."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest
from distributed import Security

from daskml_dist.comm import listener
from daskml_dist.comm.base import ConnectionSettings
from daskml_dist.comm.listener import Credentials
from tests.comm.attacks.served import PATIENCE, SECRET, Served


@pytest.fixture(scope="module")
def contexts() -> dict[bool, dict[str, ssl.SSLContext]]:
    """Return the TLS contexts of a cluster (True), and none (False)."""
    pytest.importorskip("cryptography")
    security = Security.temporary()
    listen = security.get_listen_args("worker")["ssl_context"]
    return {
        True: {
            "listen": listen,
            "connect": security.get_connection_args("worker")["ssl_context"],
        },
        False: {},
    }


@pytest.fixture(params=[False, True], ids=["tcp", "tls"])
def credentials(
    request: pytest.FixtureRequest, contexts: dict[bool, dict[str, ssl.SSLContext]]
) -> Credentials:
    """Return credentials like the fit's; without shared memory, so that bytes use the sockets."""
    return Credentials(
        SECRET, settings=ConnectionSettings(False), patience=PATIENCE, **contexts[request.param]
    )


@pytest.fixture
def served(credentials: Credentials, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    # Seconds between a listener's checks for expired half-open connections.
    monkeypatch.setattr(listener, "_EXPIRY_SECONDS", 0.1)
    served = Served(credentials)
    yield served
    served.listener.close()
