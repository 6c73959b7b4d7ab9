"""Streams: rows that come little by little, learned as they come, with no fit around each batch.

An estimator's :meth:`~daskml_dist.streaming.Streamed.stream` opens a session, which keeps the
parameters and the optimizer's state in the calling process between calls.
"""

from __future__ import annotations

from daskml_dist.streaming.drift import Detector, PageHinkley
from daskml_dist.streaming.folder import folder
from daskml_dist.streaming.session import Session
from daskml_dist.streaming.sources import Batch
from daskml_dist.streaming.streamed import Streamed

__all__ = ["Batch", "Detector", "PageHinkley", "Session", "Streamed", "folder"]
