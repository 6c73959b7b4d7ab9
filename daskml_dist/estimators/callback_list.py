"""The callbacks of a fit: the user's, and those that every fit has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daskml_dist.diagnostics.live.feed import Feed
from daskml_dist.diagnostics.progress import Progress
from daskml_dist.errors import InvalidParameterError
from daskml_dist.training.callbacks import CallbackList
from daskml_dist.training.checkpoint import Checkpoint


def callback_list(
    given: Any, name: str, max_iter: int | None, verbose: Any = 0,
    *, aside: tuple[type, ...] = (), first: Sequence[object] = (), has_checkpoint: bool = False,
) -> CallbackList:  # fmt: skip
    """Callbacks of `fit` itself, the user's, and those that show how far a fit is."""
    callbacks = [*first, *(given if isinstance(given, list | tuple) else [given])]
    if Checkpoint not in aside and any(isinstance(c, Checkpoint) for c in callbacks):
        raise InvalidParameterError(
            f"callbacks hold a Checkpoint, which is a parameter of its own: {name}(checkpoint="
            'Checkpoint("fit.npz")).'
            if has_checkpoint
            else f"{name} cannot save itself on its way: leave the Checkpoint out of callbacks. "
            "The fitted model can be saved: model.save(path)."
        )
    if verbose:
        callbacks.append(Progress(max_iter=max_iter, verbose=verbose))
    callbacks.append(Feed(name, max_iter))
    return CallbackList([c for c in callbacks if c is not None and not isinstance(c, aside)])
