"""Numbers of nodes as users see them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from daskml_dist.models.trees import Trees

__all__ = ["numbers_of"]

Array = NDArray[Any]


def numbers_of(trees: Trees) -> Array:
    """Number of each node in its tree as users see it: a left child follows its parent."""
    from daskml_dist.backends.tree_order import depth_first

    found: Array = depth_first(trees.roots, trees.nodes.left)
    return found
