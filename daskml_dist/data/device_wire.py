"""Serialisation of blocks for networks that transfer device memory (UCX): rows stay on GPUs.

Importing this module registers blocks with Dask's serialization family "cuda", which the ucx
protocol tries first. Other protocols do not use it, and pickle blocks with a host copy of their
rows.
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
from daskml_dist.data.conversion import copy_to_host
from daskml_dist.data.streamed_blocks import BlockBundle


def _dump_parts(parts: tuple[Any, ...], are_on_device: bool) -> tuple[dict[str, Any], list[Any]]:
    """Return the header and frames of parts; raise if none of their rows is on a GPU."""
    if not are_on_device:
        raise NotImplementedError("rows in host memory")  # Dask then tries its next serializer
    # Rows on the device become frames without a copy; everything else is pickled.
    header_and_frames: tuple[dict[str, Any], list[Any]] = serialize(
        parts, serializers=("cuda", "pickle"), on_error="raise", iterate_collection=True
    )
    return header_and_frames


def _dump_block(block: Block) -> tuple[dict[str, Any], list[Any]]:
    """Return a block's rows and other fields, serialised separately."""
    other_fields = {field.name: getattr(block, field.name) for field in fields(block)}
    other_fields["target"] = copy_to_host(other_fields["target"])
    return _dump_parts((other_fields.pop("rows"), other_fields), block.on_device is not None)


def _load_block(header: dict[str, Any], frames: list[Any]) -> Block:
    """Return the block that :func:`_dump_block` serialised."""
    rows, other_fields = deserialize(header, frames)
    return Block(rows=rows, **other_fields)


def _dump_bundle(bundle: BlockBundle) -> tuple[dict[str, Any], list[Any]]:
    """Return the serialised blocks of a bundle, and their facts."""
    are_on_device = any(block.on_device is not None for block in bundle.blocks.values())
    return _dump_parts((list(bundle.blocks.values()), bundle.infos), are_on_device)


def _load_bundle(header: dict[str, Any], frames: list[Any]) -> BlockBundle:
    """Return the bundle that :func:`_dump_bundle` serialised."""
    blocks, infos = deserialize(header, frames)
    return BlockBundle({block.index: block for block in blocks}, infos)


cuda_serialize.register(BlockBundle, _dump_bundle)
cuda_deserialize.register(BlockBundle, _load_bundle)
cuda_serialize.register(Block, _dump_block)
cuda_deserialize.register(Block, _load_block)
