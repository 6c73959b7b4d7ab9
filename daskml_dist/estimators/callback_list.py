"""Callbacks of a fit: those of the method `fit`, the user's, and those that show its progress."""

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
    """Return the callbacks of a fit: `first`, those `given` but for classes `aside`, and a display.

    `name` is the estimator's, for errors and displays; `has_checkpoint` says whether it has a
    parameter `checkpoint`.
    """
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
    # Reports fits on a cluster to the dashboard's page; fits in one process are not reported.
    callbacks.append(Feed(name, max_iter))
    return CallbackList([c for c in callbacks if c is not None and not isinstance(c, aside)])
