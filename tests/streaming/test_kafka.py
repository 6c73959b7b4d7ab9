"""Kafka as a source, with the test broker of librdkafka: each message is learned once."""

import numpy as np
import pytest

from daskml_dist.errors import InvalidDataError, InvalidParameterError
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.streaming import KafkaSource
from daskml_dist.training.checkpoint import Checkpoint

_X = np.random.default_rng(0).standard_normal((60, 3))
_Y = (_X[:, 0] > 0).astype(float)


@pytest.fixture
def broker():
    """Provide a producer with an embedded broker, its address, and a topic with messages."""
    kafka = pytest.importorskip("confluent_kafka")
    producer = kafka.Producer({"test.mock.num.brokers": 1, "log_level": 0})
    brokers = producer.list_topics(timeout=60).brokers.values()
    for at, row in enumerate(np.c_[_X, _Y]):
        producer.produce("clicks", row.tobytes(), partition=at % 2)
    producer.flush(60)
    yield kafka, ",".join(f"{one.host}:{one.port}" for one in brokers)
    producer.purge()


def _read(values):
    rows = np.stack([np.frombuffer(value) for value in values])
    return rows[:, :3], rows[:, 3]


def _source(address, **more):
    config = {"bootstrap.servers": address, "group.id": "learners", "log_level": 0}
    return KafkaSource(config, "clicks", _read, **{"most": 10, "timeout": 60, **more})


def test_each_message_is_learned_once_and_committed_after_the_checkpoint(broker, tmp_path):
    kafka, address = broker
    checkpoint = Checkpoint(tmp_path / "m.npz", every=2, resume=True)
    model, n_rows = SGDClassifier(), 0
    with model.stream(classes=[0, 1], checkpoint=checkpoint) as stream:
        with _source(address) as source:
            for batch in source:
                stream.learn(batch.X, batch.y, position=batch.position)
                n_rows += len(batch.y)
                if n_rows >= 20:
                    break  # nothing was committed, so all messages are read again
    first, counted = stream.position, []
    resumed = SGDClassifier()
    with (
        _source(address, most=1, idle=60) as source,
        resumed.stream(
            classes=[0, 1], checkpoint=checkpoint, on_checkpoint=source.commit
        ) as stream,
    ):
        assert stream.position == first
        for batch in source:
            loss = stream.learn(batch.X, batch.y, position=batch.position)
            counted.append(loss is not None)
            if stream.n_rows == 60:
                break
    assert stream.n_rows == 60
    assert stream.position == {"0": 29, "1": 29}
    assert not all(counted)
    consumer = kafka.Consumer({"bootstrap.servers": address, "group.id": "learners"})
    partitions = [kafka.TopicPartition("clicks", n) for n in (0, 1)]
    assert [one.offset for one in consumer.committed(partitions, timeout=60)] == [30, 30]
    consumer.close()


def test_reading_continues_after_a_position(broker):
    _, address = broker
    with _source(address, after={"0": 27, "1": 28}, most=1, idle=60) as source:
        found, n_rows = {}, 0
        for batch in source:
            found |= batch.position
            n_rows += len(batch.y)
            if n_rows == 3:  # in any order of the partitions
                break
        assert {n: at for n, at in found.items() if n in "01"} == {"0": 29, "1": 29}


def test_reading_ends_once_all_partitions_are_read(broker):
    _, address = broker
    with _source(address, idle=0) as source:
        assert sum(len(batch.y) for batch in source) == 60


def test_messages_without_rows_are_skipped(broker):
    kafka, address = broker
    producer = kafka.Producer({"bootstrap.servers": address, "log_level": 0})
    for value in (None, b"poison"):
        producer.produce("clicks", value, partition=0)
    producer.flush(60)

    def read(values):
        good = [value for value in values if value is not None and len(value) == 32]
        return _read(good) if good else ([], [])

    source = _source(address, after={"0": 28, "1": 29}, most=1, idle=0)
    source._parse_messages = read
    with SGDClassifier().stream(classes=[0, 1]) as stream, source:
        for batch in source:
            stream.learn(batch.X, batch.y, position=batch.position)
    assert (stream.n_rows, stream.position) == (1, {"0": 31})


def test_deleted_messages_raise(broker):
    _, address = broker
    with (
        pytest.raises(InvalidDataError, match="offset not available"),
        _source(address, after={"0": 1000}, idle=0) as source,
    ):
        list(source)
    with pytest.raises(InvalidDataError, match="recreated"), _source(address, after={"7": 1}):
        pass


@pytest.mark.parametrize(
    "how", [{"idle": -1}, {"timeout": "1"}, {"most": 10**7}, {"after": {"0": -1}}, {"after": 3}]
)
def test_invalid_parameters_are_refused(how):
    pytest.importorskip("confluent_kafka")
    with pytest.raises(InvalidParameterError, match="give"):
        _source("127.0.0.1:1", **how)


def test_unreadable_messages_raise(broker):
    _, address = broker
    with pytest.raises(InvalidParameterError, match="list of bytes"):
        KafkaSource({}, "clicks", None)
    source = _source(address)
    with pytest.raises(InvalidParameterError, match="closed"):
        next(iter(source))
    with source:
        for how in (source.__enter__, lambda: source.commit({"x": 1})):
            with pytest.raises(InvalidParameterError, match=r"another|number"):
                how()
    source = KafkaSource({"group.id": "g", "no.such": 1}, "clicks", _read)
    with pytest.raises(InvalidParameterError, match="options of librdkafka"), source:
        pass
    config = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
    with (
        pytest.raises(InvalidDataError, match=r"bootstrap\.servers"),
        KafkaSource(config, "clicks", _read, timeout=0.5),
    ):
        pass
