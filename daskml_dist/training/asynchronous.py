"""Calls of this package that an event loop awaits, each run in its own thread.

In the thread, a client that belongs to the loop can be used normally: its calls block the thread
while the loop keeps running and answers them. If the loop's task is cancelled, a fit ends between
two steps, as after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from daskml_dist.errors import TrainingError
from daskml_dist.training.interrupts import StopRequest, obey_stop_request

T = TypeVar("T")


async def run_async(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call a function of this package in a thread, and await its result.

    For event loops, with a ``Client(..., asynchronous=True)`` or none: fits, searches, metrics and
    computations all wait for results, and would block the loop.

    Parameters
    ----------
    function : callable
        Such as ``model.fit``, ``cross_val_score`` or ``accuracy_score``.
    *args, **kwargs
        Its arguments. Context variables, including Dask's current client, are those of the caller.

    Returns
    -------
    What the function returns.

    Raises
    ------
    asyncio.CancelledError
        The task was cancelled. Fits of the function have ended by then, between two steps, and
        their estimators hold the results so far; a second cancellation does not wait for that.
    Exception
        Exception of the function.

    Examples
    --------
    >>> import asyncio
    >>> import daskml_dist
    >>> from daskml_dist.linear_model import Ridge
    >>> asyncio.run(daskml_dist.run_async(Ridge().fit, [[0.0], [1.0]], [0.0, 2.0]))
    Ridge()
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()
    # The exception is read even if no task awaits it: asyncio warns of exceptions that are never
    # read.
    ended.add_done_callback(lambda future: future.cancelled() or future.exception())
    stop, context = StopRequest(), copy_context()
    context.run(obey_stop_request, stop)

    def call() -> None:
        """Call the function, and pass its result or error to the loop."""
        resolve: Callable[[Any], None] = ended.set_exception
        value: Any
        try:
            value = context.run(function, *args, **kwargs)
            resolve = ended.set_result
        except StopIteration as error:
            # asyncio does not accept it, since StopIteration ends coroutines.
            value = TrainingError(
                f"{function!r} raised StopIteration, which coroutines cannot pass on. Return a "
                "value instead, for example with next(iterator, None)."
            )
            value.__cause__ = error
        except BaseException as error:
            value = error
        with suppress(RuntimeError):  # the loop is closed, and nothing awaits the result
            loop.call_soon_threadsafe(_resolve_unless_done, ended, resolve, value)

    # Not a thread of the loop's pool: the pool has few threads, and a fit may take hours.
    threading.Thread(target=call, name="daskml_dist-awaited", daemon=True).start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        stop.set()
        # While waiting, the loop still serves the last calls of the fit.
        await asyncio.wait([ended])
        raise  # the cancellation, which caused the interrupt


def _resolve_unless_done(
    ended: asyncio.Future[Any], resolve: Callable[[Any], None], value: Any
) -> None:
    """Set the result or the error of a future, unless it was cancelled."""
    if not ended.done():
        resolve(value)
