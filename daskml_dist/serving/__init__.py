"""Serving: fitted models behind HTTP, by the Open Inference Protocol.

The packages of the extra ``serve`` (msgspec, uvicorn, httptools, uvloop) are imported when `serve`
is called, not with this package.
"""

from __future__ import annotations

from daskml_dist.serving.metrics import Metrics
from daskml_dist.serving.models import Models, Route, Served
from daskml_dist.serving.registry import Publisher, publish, rollback, set_route
from daskml_dist.serving.server import serve

__all__ = [
    "Metrics",
    "Models",
    "Publisher",
    "Route",
    "Served",
    "publish",
    "rollback",
    "serve",
    "set_route",
]
