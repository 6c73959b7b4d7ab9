"""The shortest way to a server: without a copy in the same process, else by its channels."""

from __future__ import annotations

from daskml_dist.comm.base import Endpoint, ServerConnection, Wait
from daskml_dist.comm.bounds import Bounds
from daskml_dist.comm.listener import Credentials
from daskml_dist.comm.local import LocalConnection, find_server
from daskml_dist.comm.remote import RemoteConnection

__all__ = ["reach"]


def reach(
    endpoint: Endpoint, credentials: Credentials, wait: Wait, bounds: Bounds
) -> ServerConnection:
    """Connect to a server.

    Parameters
    ----------
    endpoint : Endpoint
    credentials : Credentials
    wait : Wait
    bounds : Bounds
        What the server and its trainers may send.
    """
    server = find_server(endpoint.key)
    if server is not None:
        return LocalConnection(server, wait)
    return RemoteConnection(endpoint, credentials, wait, bounds)
