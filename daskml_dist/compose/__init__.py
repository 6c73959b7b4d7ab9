"""Meta-transformers that combine other transformers, for Dask collections."""

from __future__ import annotations

from daskml_dist.compose.blockwise import Blockwise
from daskml_dist.compose.column_transformer import ColumnTransformer, make_column_transformer

__all__ = ["Blockwise", "ColumnTransformer", "make_column_transformer"]
