"""Cable of a host (:mod:`benchmarks._hosts`): ``python -m benchmarks._cable A B DELAY LOSS N``.

Moves Ethernet frames between two interfaces, whose file descriptors are A and B, each after a delay
(seconds), and drops a random share of them (LOSS).
"""

from __future__ import annotations

import os
import random
import select
import sys
import time
from collections import deque

#: Upper bound on the bytes of a frame: the interfaces' frames are shorter.
_FRAME = 1 << 16
#: Largest number of frames in flight each way; beyond it frames are dropped, as in a router's full
#: queue.
_QUEUE = 4096


def relay(ends: tuple[int, int], delay: float, loss: float, seed: int) -> None:
    """Move frames until this process is ended."""
    draw = random.Random(seed)
    others = {ends[0]: ends[1], ends[1]: ends[0]}
    under_way: deque[tuple[float, int, bytes]] = deque()
    poll = select.poll()
    for end in ends:
        poll.register(end, select.POLLIN)
    while True:
        # The delay is the same for all frames, so they arrive in the order in which they were sent.
        wait = None if not under_way else max(0.0, under_way[0][0] - time.monotonic()) * 1e3
        for end, _ in poll.poll(wait):
            now = time.monotonic()
            try:
                while True:
                    frame = os.read(end, _FRAME)
                    if len(under_way) < _QUEUE and draw.random() >= loss:
                        under_way.append((now + delay, others[end], frame))
            except BlockingIOError:
                pass
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            _, end, frame = under_way.popleft()
            try:
                os.write(end, frame)
            except OSError:
                pass  # the interface is down, or its queue is full: the frame is lost


def main() -> None:
    """Read the command line, and move frames."""
    near, far, delay, loss, seed = sys.argv[1:]
    relay((int(near), int(far)), float(delay), float(loss), int(seed))


if __name__ == "__main__":
    main()
