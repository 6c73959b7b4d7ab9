"""Serializers of distributed, which convert objects that are sent between workers."""

from __future__ import annotations

from distributed.protocol import pickle
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import deserialize, serialize

__all__ = ["cuda_deserialize", "cuda_serialize", "deserialize", "pickle", "serialize"]
