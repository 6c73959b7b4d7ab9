"""Blocks on a network that carries device memory (ucx): their rows stay on GPUs.

Elsewhere Dask finds no use for this, and pickles them: with a copy of their rows in host memory.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from daskml_dist.dask_internals.serialization import (
    cuda_deserialize,
    cuda_serialize,
    deserialize,
    serialize,
)
from daskml_dist.data.blocks import Block
from daskml_dist.data.streamed_blocks import Bundle

__all__: list[str] = []


def _dump(block: Block) -> tuple[dict[str, Any], list[Any]]:
    if block.on_device is None:
        raise NotImplementedError("rows in host memory")  # Dask asks its next serializer
    rest = {field.name: getattr(block, field.name) for field in fields(block)}
    parts = (rest.pop("rows"), rest)
    found: tuple[dict[str, Any], list[Any]] = serialize(
        parts, serializers=("cuda", "pickle"), on_error="raise", iterate_collection=True
    )
    return found


def _load(header: dict[str, Any], frames: list[Any]) -> Block:
    rows, rest = deserialize(header, frames)
    return Block(rows=rows, **rest)


def _dump_bundle(bundle: Bundle) -> tuple[dict[str, Any], list[Any]]:
    if all(block.on_device is None for block in bundle.blocks.values()):
        raise NotImplementedError("rows in host memory")
    parts = (list(bundle.blocks.values()), bundle.infos)
    found: tuple[dict[str, Any], list[Any]] = serialize(
        parts, serializers=("cuda", "pickle"), on_error="raise", iterate_collection=True
    )
    return found


def _load_bundle(header: dict[str, Any], frames: list[Any]) -> Bundle:
    blocks, infos = deserialize(header, frames)
    return Bundle({block.index: block for block in blocks}, infos)


cuda_serialize.register(Bundle, _dump_bundle)
cuda_deserialize.register(Bundle, _load_bundle)
cuda_serialize.register(Block, _dump)
cuda_deserialize.register(Block, _load)
