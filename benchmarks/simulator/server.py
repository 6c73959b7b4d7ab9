"""A parameter server in a separate process, to measure the cost of its messages.

Separate from the measuring code, so that the new process imports little.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from daskml_dist.comm.base import ConnectionSettings
from daskml_dist.comm.listener import Channel, Credentials, Listener
from daskml_dist.comm.packing import MessageBounds
from daskml_dist.comm.server_connections import serve_connection
from daskml_dist.optimizers import SGD
from daskml_dist.penalties import Penalty
from daskml_dist.policies import Asynchronous, Policy
from daskml_dist.ps.rule import ParameterGroup, UpdateRule
from daskml_dist.ps.server import ShardServer
from daskml_dist.ps.shard import Shard
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.schedules import Constant

__all__ = ["make_server", "run_server"]


def make_server(policy: Policy, lanes: int, n: int) -> ShardServer:
    """Return a server of `n` float64 parameters under plain SGD."""
    group = ParameterGroup(0, n, SGD(), Penalty(0.0, 0.0), n)
    rule = UpdateRule((group,), Constant(1e-3), 1e9)
    shard = Shard(rule, ShardState(np.zeros((n, 1)), {}))
    return ShardServer(policy, list(range(lanes)), shard, None, 1)


def run_server(pipe: Any, secret: bytes, n: int, lanes: int) -> None:
    """Run a server in a separate process until the pipe sends the end."""
    server = make_server(Asynchronous(), lanes, n)

    def on_pair(up: Channel, down: Channel) -> None:
        threading.Thread(
            target=serve_connection,
            args=(server, up, down, MessageBounds("f8", n, 1, lanes)),
            daemon=True,
        ).start()

    listener = Listener(
        "127.0.0.1", Credentials(secret, settings=ConnectionSettings(False)), on_pair=on_pair
    )
    pipe.send(listener.port)
    pipe.recv()
    listener.close()
