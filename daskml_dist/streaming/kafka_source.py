"""`KafkaSource`: batches of rows from the messages of a Kafka topic.

Kafka's consumer groups commit offsets by time, not by what was learned: after a crash some messages
would count twice or not at all. Therefore partitions are assigned rather than subscribed to, the
offsets of learned messages are in the checkpoint with the parameters, and the group's committed
offsets follow the checkpoint only for tools that show a group's lag.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.errors.signatures import ParameterObject
from daskml_dist.streaming.sources import Batch, check_seconds, unpack_X_y

#: Seconds to wait for messages of a batch: short, since Ctrl-C is delayed while librdkafka waits.
_GATHER_SECONDS = 0.1
#: Most messages that one call of `Consumer.consume` returns; confluent-kafka refuses more.
_MAX_MESSAGES = 1_000_000


class KafkaSource(ParameterObject):
    """Batches of the messages of a Kafka topic; a context manager, and an iterator.

    A partition is read from the message after its offset in `after`, else from the group's
    committed offset, else from its beginning. This process reads all partitions, even if the group
    has other consumers; partitions that are added to the topic later are read when the source is
    entered again. A batch holds messages of one partition, and its position is ``{"0": offset}``:
    the partition's number, and the offset of the batch's last message. Only :meth:`commit` commits
    offsets: pass it to a stream as ``on_checkpoint``, so that they are committed once the
    checkpoint is on disk. Needs the package ``confluent-kafka``
    (``pip install "daskml-dist[kafka]"``).

    Parameters
    ----------
    config : dict
        Configuration of librdkafka, with ``"bootstrap.servers"`` and ``"group.id"``. If the topic
        no longer has the first messages to read, the source raises; with
        ``"auto.offset.reset": "earliest"`` it starts from the oldest message of the topic.
    topic : str
    read : callable
        Function from a list of message values (bytes, or None for a message without a value) to X
        and y. For messages with nothing to learn, X and y have no rows.
    after : dict, optional
        Offset of the last learned message by partition: ``s.position`` of a resumed session.
    most : int, default=100
        Most messages of a batch.
    idle : float, optional
        Seconds without a message after which the source ends, once it has read all partitions to
        their ends; None: it waits until interrupted, even if the brokers do not answer.
    timeout : float, default=10.0
        Seconds within which the brokers must answer.

    Raises
    ------
    InvalidParameterError
        A parameter is invalid, or the package is missing.
    InvalidDataError
        There is no such topic, or Kafka reports an error.

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
        if not (callable(read) and isinstance(most, int) and 1 <= most <= _MAX_MESSAGES):
            raise InvalidParameterError(
                f"read={read!r}, most={most!r}: give a function of a list of bytes, and an "
                f"integer >= 1, of {_MAX_MESSAGES:,} at most."
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
        # By default librdkafka skips to the end of a partition whose next message was deleted, and
        # so misses the messages that are left; the user's config may choose otherwise.
        defaults = {"auto.offset.reset": "error"}
        # No commit before the checkpoint is written; and an event at the end of each partition,
        # which `idle` needs (`_ends_after`).
        required = {"enable.auto.commit": False, "enable.partition.eof": True}
        self._config = {**defaults, **config, **required}
        self._topic = topic
        self._parse_messages = read
        self._after_offsets = dict(after or {})
        self._max_messages, self._idle, self._timeout = most, idle, timeout
        self._consumer: Any = None
        #: Numbers of the partitions that have not been read to the end.
        self._unread: set[int] = set()

    def __enter__(self) -> Self:
        if self._consumer is not None:
            raise InvalidParameterError(
                "The source has already been read. Make another KafkaSource."
            )
        try:
            consumer = self._kafka.Consumer(self._config)
        except (self._kafka.KafkaException, ValueError, TypeError) as error:
            raise InvalidParameterError(
                f"config cannot be used: {error}. Give options of librdkafka, with "
                '"bootstrap.servers" and "group.id".'
            ) from error
        try:
            starts = self._find_start_offsets(consumer)
            consumer.assign(starts)
        except BaseException:
            consumer.close()
            raise
        self._unread = {partition.partition for partition in starts}
        self._consumer = consumer
        return self

    def __exit__(self, *error: object) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _find_start_offsets(self, consumer: Any) -> list[Any]:
        """Return the topic's partitions, each with the offset from which it is read."""
        try:
            topic = consumer.list_topics(self._topic, timeout=self._timeout).topics[self._topic]
            partitions = [self._kafka.TopicPartition(self._topic, n) for n in topic.partitions]
            committed = consumer.committed(partitions, timeout=self._timeout) if partitions else []
        except self._kafka.KafkaException as error:
            raise self._make_error(error) from error
        if not partitions:
            raise InvalidDataError(
                f"Kafka has no topic {self._topic!r} ({topic.error}). Correct its name, or "
                "create it."
            )
        numbers = {str(partition.partition) for partition in committed}
        if unknown := sorted(self._after_offsets.keys() - numbers):
            raise InvalidDataError(
                f"after={self._after_offsets!r}: topic {self._topic!r} has no partition "
                f"{', '.join(unknown)}. Was it recreated? Then start another stream."
            )
        for partition in committed:
            # The checkpoint's offset is used rather than the group's, which may be older.
            if (number := str(partition.partition)) in self._after_offsets:
                partition.offset = (
                    self._after_offsets[number] + 1
                )  # `after` is the last learned message
            elif partition.offset < 0:  # a special value: the group has committed nothing
                partition.offset = self._kafka.OFFSET_BEGINNING
        return list(committed)

    def __iter__(self) -> Iterator[Batch]:
        if self._consumer is None:
            raise InvalidParameterError(
                "The source is closed. Read it inside its context: with KafkaSource(...) as source."
            )
        since = time.monotonic()
        while self._consumer is not None:  # until the context is left, also inside the loop's body
            if messages := self._poll():
                yield from self._make_batches(messages)
                since = time.monotonic()
            elif self._ends_after(time.monotonic() - since):
                return

    def _ends_after(self, waited: float) -> bool:
        """Return whether the source ends after `waited` seconds without a message.

        Raise if the brokers have not answered for all partitions by then.
        """
        if self._idle is None or waited < self._idle:
            return False
        # Unreachable brokers look like the end of the topic, except that they do not report the
        # ends of partitions.
        if self._unread and waited >= self._idle + self._timeout:
            raise self._make_error(f"no answer within {self._timeout:g} s")
        return not self._unread

    def _poll(self) -> list[Any]:
        """Return the messages that arrive within `_GATHER_SECONDS`; record which partitions end."""
        try:
            received = self._consumer.consume(self._max_messages, timeout=_GATHER_SECONDS)
        except self._kafka.KafkaException as error:
            raise self._make_error(error) from error
        messages = []
        for message in received:
            # librdkafka reports errors and the ends of partitions as messages among the others.
            if (failure := message.error()) is None:
                self._unread.add(message.partition())  # there may be more after it
                messages.append(message)
            elif failure.code() == self._kafka.KafkaError._PARTITION_EOF:
                self._unread.discard(message.partition())
            else:
                raise self._make_error(failure)
        return messages

    def _make_batches(self, messages: list[Any]) -> Iterator[Batch]:
        """Yield a batch for each partition of the messages, in message order."""
        by_partition: dict[int, list[Any]] = {}
        for message in messages:
            by_partition.setdefault(message.partition(), []).append(message)
        for number, partition_messages in by_partition.items():
            # The consumer returns a partition's messages in offset order, so the last has the
            # largest offset.
            source = f"messages of {self._topic!r}, partition {number}"
            X, y = unpack_X_y(
                self._parse_messages([message.value() for message in partition_messages]), source
            )
            yield Batch(X, y, {str(number): partition_messages[-1].offset()})

    def commit(self, position: dict[str, int] | None) -> None:
        """Commit the offsets of a stream's position; return when the brokers have them.

        Parameters
        ----------
        position : dict or None
            Offset of the last learned message by partition; None: no message was learned.

        Raises
        ------
        InvalidDataError
            Kafka reports an error.
        """
        if position is None or self._consumer is None:
            return
        _check_after(position)
        partition = self._kafka.TopicPartition
        # Kafka's committed offset is that of the next message to read.
        offsets = [partition(self._topic, int(n), last + 1) for n, last in position.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except self._kafka.KafkaException as error:
            raise self._make_error(error) from error

    def _make_error(self, error: object) -> InvalidDataError:
        """Return the error for a topic that cannot be read, with Kafka's reason."""
        return InvalidDataError(
            f"Kafka's topic {self._topic!r} cannot be read: {error}. Check bootstrap.servers, "
            "the topic, which messages it still has, and the permissions of the group; a stream "
            "can resume from its checkpoint."
        )


def _check_after(offsets: Any) -> None:
    """Raise unless `offsets` is None or a dict of offsets by partition."""
    if offsets is None:
        return
    if not isinstance(offsets, dict) or not all(
        isinstance(name, str) and name.isdecimal() and isinstance(offset, int) and offset >= 0
        for name, offset in offsets.items()
    ):
        raise InvalidParameterError(
            f"{offsets!r}: give offsets by the text of a partition's number, such as {{'0': 41}}, "
            "as a stream of such batches has them."
        )
