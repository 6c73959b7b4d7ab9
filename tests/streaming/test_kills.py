"""A stream whose process is killed learns each row exactly once."""

import multiprocessing
import os
import random
import signal
import time

import numpy as np
import pytest

from daskml_dist.linear_model import SGDClassifier
from daskml_dist.training.checkpoint import Checkpoint


def _batch(number):
    rng = np.random.default_rng(number)
    X = rng.standard_normal((20, 4))
    return X, (X[:, 0] + rng.standard_normal(20) > 0).astype(int)


def _learn(path, n_batches, connection):
    """Learn from the checkpoint's position, from a source that repeats some batches."""
    checkpoint = Checkpoint(path, every=3, resume=True)
    with SGDClassifier().stream(classes=[0, 1], checkpoint=checkpoint) as stream:
        begin = 0 if stream.position is None else max(0, stream.position - 5)
        connection.send("learning")
        for number in range(begin, n_batches):
            stream.learn(*_batch(number), position=number)
            time.sleep(0.0005)
    connection.send("ended")


def _read_line(connection):
    """Return the next output line of a child; empty if it has died."""
    try:
        return connection.recv()
    except EOFError:
        return ""


def _kill_till_the_end(path, n_batches, n_kills):
    """Kill children at random moments of their learning, then let one end."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    rng, kills = random.Random(0), 0
    while True:
        receiver, sender = processes.Pipe(duplex=False)
        child = processes.Process(target=_learn, args=(path, n_batches, sender), daemon=True)
        child.start()
        sender.close()
        assert _read_line(receiver) == "learning"
        if kills < n_kills:
            time.sleep(rng.uniform(0, 0.03))
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        end = _read_line(receiver)
        child.join()
        receiver.close()
        if end == "ended":
            return kills


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_no_row_is_lost_or_learned_twice_by_a_hundred_kills(tmp_path):
    n_batches, path = 4000, str(tmp_path / "stream.npz")
    assert _kill_till_the_end(path, n_batches, n_kills=100) == 100
    whole = SGDClassifier()
    with whole.stream(classes=[0, 1]) as truth:
        for number in range(n_batches):
            truth.learn(*_batch(number))
    found = SGDClassifier()
    with found.stream(checkpoint=Checkpoint(path, resume=True)) as stream:
        assert (stream.position, stream.n_rows) == (n_batches - 1, 20 * n_batches)
    assert np.array_equal(found.coef_, whole.coef_)
    assert np.array_equal(found.intercept_, whole.intercept_)
    assert stream.progressive_loss == truth.progressive_loss
