"""`kafka`: a source of the messages of a topic of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.names import NamedParameters
from daskml_dist.streaming.sources import Batch

__all__ = ["KafkaSource"]


class KafkaSource(NamedParameters):
    """Messages of a topic of Kafka; a context manager, and an iterator of batches.

    Partitions are read from where `after` says, else from the group's committed offsets, else from
    their beginning. A batch holds messages of one partition, and its position is
    ``{"0": offset}``, of the last of them by the partition's number. Offsets are committed by
    :meth:`commit` alone: give it to a stream as ``on_checkpoint``, so that they are committed once
    what was learned is on disk. Needs the package ``confluent-kafka`` (``pip install
    "daskml-dist[kafka]"``).

    Parameters
    ----------
    config : dict
        Of librdkafka, with ``"bootstrap.servers"`` and ``"group.id"``.
    topic : str
    read : callable
        Function from a list of the values of messages (bytes) to X and y.
    after : dict, optional
        ``s.position`` of a session that was resumed; offsets by partition.
    most : int, default=100
        Messages of a batch at most.
    idle : float, optional
        Seconds without a message after which the source ends; None: it waits until interrupted.
    timeout : float, default=10.0
        Seconds within which the brokers must answer.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning, or the package is missing.
    InvalidDataError
        There is no such topic, or Kafka tells of an error.
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
        if not callable(read) or not isinstance(most, int) or most < 1:
            raise InvalidParameterError(
                f"read={read!r}, most={most!r}: give a function of a list of bytes, and an "
                "integer >= 1."
            )
        try:
            import confluent_kafka  # type: ignore[import-not-found,unused-ignore]
        except ModuleNotFoundError as error:
            raise InvalidParameterError(
                'A source of Kafka needs confluent-kafka: pip install "daskml-dist[kafka]".'
            ) from error
        self._kafka: Any = confluent_kafka
        self._config = {**config, "enable.auto.commit": False}
        self._topic = topic
        self._read = read
        self._after = dict(after or {})
        self._most, self._idle, self._timeout = most, idle, timeout
        self._consumer: Any = None

    def __enter__(self) -> Self:
        consumer = self._kafka.Consumer(self._config)
        try:
            consumer.assign(self._starts(consumer))
        except BaseException:
            consumer.close()
            raise
        self._consumer = consumer
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        consumer, self._consumer = self._consumer, None
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
        while self._consumer is not None:
            wait = 1.0 if self._idle is None else self._idle
            try:
                messages = self._consumer.consume(self._most, timeout=wait)
            except self._kafka.KafkaException as error:
                raise self._told(error) from error
            if not messages and self._idle is not None:
                return
            yield from self._batches(messages)

    def _batches(self, messages: list[Any]) -> Iterator[Batch]:
        by_partition: dict[int, list[Any]] = {}
        for message in messages:
            if message.error() is not None:
                raise self._told(message.error())
            by_partition.setdefault(message.partition(), []).append(message)
        for number, some in by_partition.items():
            X, y = self._read([message.value() for message in some])
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
        if not position or self._consumer is None:
            return
        made = self._kafka.TopicPartition
        offsets = [made(self._topic, int(n), offset + 1) for n, offset in position.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except self._kafka.KafkaException as error:
            raise self._told(error) from error

    def _told(self, error: Any) -> InvalidDataError:
        return InvalidDataError(
            f"Kafka's topic {self._topic!r} cannot be read: {error}. Check bootstrap.servers, "
            "the topic and the group's rights; a stream goes on from its checkpoint."
        )
