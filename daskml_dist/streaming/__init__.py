"""Streams: rows that arrive over time, each learned on arrival, without a new fit per batch.

An estimator's :meth:`~daskml_dist.base.BaseSteps.stream` opens a session, which keeps the
parameters and the optimizer's state in the calling process between calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daskml_dist.streaming.drift import Detector, PageHinkley
from daskml_dist.streaming.kafka_source import KafkaSource
from daskml_dist.streaming.sources import Batch, folder

if TYPE_CHECKING:
    from daskml_dist.streaming.session import Session

__all__ = ["Batch", "Detector", "KafkaSource", "PageHinkley", "Session", "folder"]


def __getattr__(name: str) -> Any:
    if name == "Session":  # it loads the engine, which importing an estimator does not need
        from daskml_dist.streaming.session import Session

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
