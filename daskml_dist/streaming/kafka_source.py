"""`kafka`: a source of the messages of a topic of Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import NamedParameters
from daskml_dist.streaming.sources import Batch, check_seconds, unpack_X_y

__all__ = ["KafkaSource"]

#: Seconds in which messages gather for a batch.
_MOMENT = 0.1
#: Messages that librdkafka gives at once, at most.
_MOST = 1_000_000


class KafkaSource(NamedParameters):
    """Messages of a topic of Kafka; a context manager, and an iterator of batches.

    Partitions are read from where `after` says, else from the group's committed offsets, else from
    their beginning: all of them by this process alone, whoever else is of the group, and those that
    the topic gets later once it is entered again. A batch holds messages of one partition, and its
    position is ``{"0": offset}``, of the last of them by the partition's number. Offsets are
    committed by :meth:`commit` alone: give it to a stream as ``on_checkpoint``, so that they are
    committed once what was learned is on disk. Needs the package ``confluent-kafka`` (``pip install
    "daskml-dist[kafka]"``).

    Parameters
    ----------
    config : dict
        Of librdkafka, with ``"bootstrap.servers"`` and ``"group.id"``. Where the messages to begin
        with are not there any more, that is an error; with ``"auto.offset.reset": "earliest"`` it
        goes on from the first that there is.
    topic : str
    read : callable
        Function from a list of the values of messages (bytes, None of one without a value) to X and
        y; of messages that hold nothing to learn, to no rows.
    after : dict, optional
        ``s.position`` of a session that was resumed; offsets by partition.
    most : int, default=100
        Messages of a batch at most.
    idle : float, optional
        Seconds without a message after which the source ends, once it has read all partitions to
        their ends; None: it waits until interrupted, also for brokers that are away.
    timeout : float, default=10.0
        Seconds within which the brokers must answer.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning, or the package is missing.
    InvalidDataError
        There is no such topic, or Kafka tells of an error.

    Examples
    --------
    >>> from daskml_dist.streaming import KafkaSource
    >>> servers = {'bootstrap.servers': 'localhost:9092'}
    >>> for batch in KafkaSource(servers, 'clicks', read):  # doctest: +SKIP
    ...     session.learn(batch.X, batch.y)
    """

    def __init__(
        self,
        config: dict[str, Any],
        topic: str,
        read: Callable[[Sequence[bytes]], tuple[Any, Any]],
        *,
        after: dict[str, int] | None = None,
        most: int = 100,
        idle: float | None = None,
        timeout: float = 10.0,
    ) -> None:
        if not (callable(read) and isinstance(most, int) and 1 <= most <= _MOST):
            raise InvalidParameterError(
                f"read={read!r}, most={most!r}: give a function of a list of bytes, and an "
                f"integer >= 1, of {_MOST:,} at most."
            )
        check_seconds("idle", idle, may_be_none=True)
        check_seconds("timeout", timeout)
        _check_after(after)
        try:
            import confluent_kafka  # type: ignore[import-not-found,unused-ignore]
        except ModuleNotFoundError as error:
            raise InvalidParameterError(
                'A source of Kafka needs confluent-kafka: pip install "daskml-dist[kafka]".'
            ) from error
        self._kafka: Any = confluent_kafka
        if not isinstance(config, dict):
            raise InvalidParameterError(
                f'config={config!r}: give a dict with "bootstrap.servers" and "group.id".'
            )
        # Else librdkafka goes on from the end where messages are missing, and loses all others.
        start = {"auto.offset.reset": "error"}
        own = {"enable.auto.commit": False, "enable.partition.eof": True}
        self._config = {**start, **config, **own}
        self._topic = topic
        self._read = read
        self._after = dict(after or {})
        self._most, self._idle, self._timeout = most, idle, timeout
        self._consumer: Any = None
        #: Partitions that have not been read to their ends.
        self._unread: set[int] = set()

    def __enter__(self) -> Self:
        if self._consumer is not None:
            raise InvalidParameterError("The source is read already. Make another KafkaSource.")
        try:
            consumer = self._kafka.Consumer(self._config)
        except (self._kafka.KafkaException, ValueError, TypeError) as error:
            raise InvalidParameterError(
                f"config cannot be used: {error}. Give options of librdkafka, with "
                '"bootstrap.servers" and "group.id".'
            ) from error
        try:
            starts = self._starts(consumer)
            consumer.assign(starts)
        except BaseException:
            consumer.close()
            raise
        self._unread = {one.partition for one in starts}
        self._consumer = consumer
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _starts(self, consumer: Any) -> list[Any]:
        """Partitions, each where it is to be read from."""
        try:
            found = consumer.list_topics(self._topic, timeout=self._timeout).topics[self._topic]
            partitions = [self._kafka.TopicPartition(self._topic, n) for n in found.partitions]
            committed = consumer.committed(partitions, timeout=self._timeout) if partitions else []
        except self._kafka.KafkaException as error:
            raise self._told(error) from error
        if not partitions:
            raise InvalidDataError(
                f"Kafka has no topic {self._topic!r} ({found.error}). Correct its name, or make it."
            )
        numbers = {str(one.partition) for one in committed}
        if strange := sorted(self._after.keys() - numbers):
            raise InvalidDataError(
                f"after={self._after!r}: topic {self._topic!r} has no partition "
                f"{', '.join(strange)}. Was it made anew? Then begin another stream."
            )
        for one in committed:
            if str(one.partition) in self._after:
                one.offset = self._after[str(one.partition)] + 1
            elif one.offset < 0:
                one.offset = self._kafka.OFFSET_BEGINNING
        return list(committed)

    def __iter__(self) -> Iterator[Batch]:
        if self._consumer is None:
            raise InvalidParameterError(
                "The source is closed. Read it inside its context: with KafkaSource(...) as source."
            )
        since = time.monotonic()
        while self._consumer is not None:
            if messages := self._messages():
                yield from self._batches(messages)
                since = time.monotonic()
            elif self._is_over(time.monotonic() - since):
                return

    def _is_over(self, waited: float) -> bool:
        """Return whether nothing more is waited for after so many seconds without a message."""
        if self._idle is None or waited < self._idle:
            return False
        if self._unread and waited >= self._idle + self._timeout:
            raise self._told(f"no answer within {self._timeout:g} s")
        return not self._unread

    def _messages(self) -> list[Any]:
        """Messages that come within a moment, in which Ctrl-C has to wait."""
        try:
            given = self._consumer.consume(self._most, timeout=_MOMENT)
        except self._kafka.KafkaException as error:
            raise self._told(error) from error
        found = []
        for message in given:
            if (told := message.error()) is None:
                self._unread.add(message.partition())
                found.append(message)
            elif told.code() == self._kafka.KafkaError._PARTITION_EOF:
                self._unread.discard(message.partition())
            else:
                raise self._told(told)
        return found

    def _batches(self, messages: list[Any]) -> Iterator[Batch]:
        by_partition: dict[int, list[Any]] = {}
        for message in messages:
            by_partition.setdefault(message.partition(), []).append(message)
        for number, some in by_partition.items():
            source = f"messages of {self._topic!r}, partition {number}"
            X, y = unpack_X_y(self._read([message.value() for message in some]), source)
            yield Batch(X, y, {str(number): some[-1].offset()})

    def commit(self, position: dict[str, int] | None) -> None:
        """Commit the offsets after a stream's position, and wait until they are.

        Parameters
        ----------
        position : dict or None
            Offsets of the last messages that were learned, by partition; None: none was.

        Raises
        ------
        InvalidDataError
            Kafka tells of an error.
        """
        if position is None or self._consumer is None:
            return
        _check_after(position)
        made = self._kafka.TopicPartition
        offsets = [made(self._topic, int(n), offset + 1) for n, offset in position.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except self._kafka.KafkaException as error:
            raise self._told(error) from error

    def _told(self, error: object) -> InvalidDataError:
        return InvalidDataError(
            f"Kafka's topic {self._topic!r} cannot be read: {error}. Check bootstrap.servers, "
            "the topic, which messages it still has, and the group's rights; a stream goes on from "
            "its checkpoint."
        )


def _check_after(after: Any) -> None:
    """Check offsets by partition."""
    if after is None:
        return
    if not isinstance(after, dict) or not all(
        isinstance(name, str) and name.isdecimal() and isinstance(offset, int) and offset >= 0
        for name, offset in after.items()
    ):
        raise InvalidParameterError(
            f"{after!r}: give offsets by the text of a partition's number, such as {{'0': 41}}, as "
            "a stream of such batches has them."
        )
