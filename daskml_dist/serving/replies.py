"""Replies: what a predictor is asked for some requests, and how its answers become theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import RequestError
from daskml_dist.inference.joined_rows import joined
from daskml_dist.serving.calls import Said, ServedRequest, refusal
from daskml_dist.serving.protocol import Answer, Question

__all__ = ["Product", "Reply", "said_of"]


class Product:
    """A predictor, as a function of the rows of some requests."""

    __slots__ = ("predictor",)

    def __init__(self, predictor: Any) -> None:
        self.predictor = predictor

    def __call__(self, pieces: list[Any]) -> NDArray[Any]:
        answers: NDArray[Any] = self.predictor(joined(pieces, self.predictor))
        return answers

    def each(self, pieces: list[Any]) -> NDArray[Any] | None:
        """Answers to requests of a row each, to the bit those of a call each, where it has them."""
        each = getattr(self.predictor, "each", None)
        if each is None or isinstance(pieces[0], dict):
            return None
        answers: NDArray[Any] | None = each(np.concatenate(pieces))
        return answers


class Reply:
    """The answer to a request that came whole: a future that is told of, not waited for."""

    __slots__ = ("_codec", "_finish", "_tell", "_told", "call", "names", "question")

    question: Question
    names: list[str]

    def __init__(
        self,
        finish: Callable[[ServedRequest, Said], Said],
        call: ServedRequest,
        codec: Any,
        tell: Callable[[int, Any, bytes], None],
    ) -> None:
        self._finish, self.call, self._codec, self._tell = finish, call, codec, tell
        self._told = False

    def done(self) -> bool:
        return self._told

    def set_result(self, values: Any) -> None:
        self._write([values])

    def set_exception(self, error: BaseException) -> None:
        assert isinstance(error, Exception)
        self._end(refusal(error, self.call))

    def cancel(self) -> None:
        self.set_exception(RequestError("This server ends: ask again.", 503))

    def gathered(self, done: asyncio.Future[list[Any]]) -> None:
        """Take the answers of several futures."""
        if done.cancelled():
            self.cancel()
        elif (error := done.exception()) is not None:
            self.set_exception(error)
        else:
            self._write(done.result())

    def _write(self, answers: list[Any]) -> None:
        try:
            outputs = list(zip(self.names, answers, strict=True))
            said = said_of(self.call, self._codec, self.question, outputs)
        except Exception as error:
            said = refusal(error, self.call)
        self._end(said)

    def _end(self, said: Said) -> None:
        self._told = True
        self._tell(*self._finish(self.call, said))


def said_of(
    call: ServedRequest, codec: Any, question: Question, outputs: list[tuple[str, Any]]
) -> Said:
    """An answer, written."""
    call.n_rows = len(outputs[0][1])
    headers, body = codec.write(Answer(call.model, call.version, outputs), question)
    return 200, headers, body
