"""Embedding parts of torch modules whose rows are provided with each batch.

A part named by the user, an `nn.Embedding` or `nn.EmbeddingBag`, is replaced by a lookup without
parameters (`replace_embeddings`). The caller of the module provides the rows of the current ids
(`rows_at_hand`), and passes the positions of these rows to the module instead of ids. Positions are
counted from 1: the row at position 0 is zeros, and represents no id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.models.torch_modules.library import load_torch

#: Rows of the current ids, by the name of the part. Each thread that shares a module has its own.
_ROWS: ContextVar[Mapping[str, Any] | None] = ContextVar("rows", default=None)


@contextmanager
def rows_at_hand(rows: Mapping[str, Any]) -> Iterator[None]:
    """Provide lookups with their rows (tensors by the name of the part) within the context."""
    token = _ROWS.set(rows)
    try:
        yield
    finally:
        _ROWS.reset(token)


@cache
def _make_lookup_class() -> Any:
    """Return the class of lookups; this imports torch."""
    torch = load_torch()
    functional = torch.nn.functional
    base: Any = torch.nn.Module

    class RowLookup(base):
        """Part of a module that looks up rows of the current ids by position."""

        def __init__(self, name: str, embedding: Any) -> None:
            super().__init__()
            self.name = name
            self.embedding_dim = embedding.embedding_dim
            #: How the rows of a bag are combined; None: each position has its own row.
            self.mode = getattr(embedding, "mode", None)

        def forward(self, places: Any) -> Any:
            rows = (_ROWS.get() or {}).get(self.name)
            if rows is None:
                raise InvalidParameterError(
                    f"{self.name} has no rows of its own: they are in a table that grows with "
                    "new ids. Call the estimator's predict or transform, not its module_."
                )
            if self.mode is None:
                return functional.embedding(places, rows)
            bags = places[:, None] if places.ndim == 1 else places
            # Positions of 0 pad bags, and have no effect.
            return functional.embedding_bag(bags, rows, mode=self.mode, padding_idx=0)

        def extra_repr(self) -> str:
            return f"{self.name}, embedding_dim={self.embedding_dim}"

    return RowLookup


def find_lookups(module: Any) -> dict[str, Any]:
    """Return the lookups of a module, by the names of the parts that they replaced."""
    kind = _make_lookup_class()
    return {part.name: part for part in module.modules() if isinstance(part, kind)}


def replace_embeddings(module: Any, names: Sequence[str]) -> None:
    """Replace the named parts of a module by lookups, wherever they occur in it."""
    parts = dict(module.named_modules())
    for name in names:
        part = _check_embedding(module, name, parts)
        lookup = _make_lookup_class()(name, part)
        # A module may hold one part under several names, and in several of its submodules.
        for owner in list(module.modules()):
            for key, child in owner._modules.items():
                if child is part:
                    owner._modules[key] = lookup
        if any(weight is part.weight for weight in module.parameters()):
            raise InvalidParameterError(
                f"{type(module).__name__} uses the weight of {name!r} elsewhere too, but rows of "
                "a table are only available by id. Give that layer its own weight."
            )


def _check_embedding(module: Any, name: str, submodules: Mapping[str, Any]) -> Any:
    """Return the part with a name; raise if its rows cannot come from a table."""
    nn = load_torch().nn
    part = submodules.get(name)
    if not isinstance(part, nn.Embedding | nn.EmbeddingBag):
        embedding_names = [
            n for n, p in submodules.items() if isinstance(p, nn.Embedding | nn.EmbeddingBag)
        ]
        raise InvalidParameterError(
            f"embeddings: {type(module).__name__} has no nn.Embedding or nn.EmbeddingBag named "
            f"{name!r}. Name parts out of {embedding_names}."
            f"{suggest_nearest(name, embedding_names)}"
        )
    if part.max_norm is not None or part.scale_grad_by_freq or not part.weight.requires_grad:
        raise InvalidParameterError(
            f"embeddings: {name!r} has max_norm, scale_grad_by_freq, or a weight that is not "
            "trained, which tables do not support. Leave these out, or leave the part out of "
            "embeddings."
        )
    return part
