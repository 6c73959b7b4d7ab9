"""The callers of a server who wait for their answer: for the policy's leave, or for each other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from daskml_dist.ps.ledger import PassLedger
from daskml_dist.ps.messages import CallReply, Reply, Request, Status, ok

__all__ = ["Callers", "Ready"]

#: Answers that are ready; given once the server's lock is free again.
Ready = list[Callable[[], Any]]


class Callers:
    """Those who wait for a server, and what they wait for.

    Not thread-safe: the server that holds it guards it.
    """

    def __init__(self) -> None:
        #: Pulls, until the policy lets their lanes go.
        self.pulls: list[tuple[Request, Callable[[Reply], None]]] = []
        #: Trainers that hand over snapshots, until the standby has those before.
        self.at_store: list[CallReply] = []
        self._arrived: dict[int, Any] = {}
        self._at_rendezvous: list[CallReply] = []
        self._at_pass_end: list[tuple[int, CallReply]] = []

    def arrive(self, rank: int, info: Any, reply: CallReply, n_trainers: int) -> Ready:
        """Take a trainer at a rendezvous; once all are there, each is told of the others.

        They may meet again, as often as they need.
        """
        self._arrived[rank] = info
        self._at_rendezvous.append(reply)
        if len(self._arrived) < n_trainers:
            return []
        peers = [self._arrived[rank] for rank in sorted(self._arrived)]
        self._arrived.clear()
        waiting, self._at_rendezvous = self._at_rendezvous, []
        return [partial(r, ok(peers=peers)) for r in waiting]

    def end_pass(self, number: int, reply: CallReply, ledger: PassLedger) -> Ready:
        """Take one that has ended a pass; all are told once the pass is closed."""
        self._at_pass_end.append((number, reply))
        done = [(n, r) for n, r in self._at_pass_end if ledger.is_closed(n)]
        self._at_pass_end = [(n, r) for n, r in self._at_pass_end if not ledger.is_closed(n)]
        return [partial(r, ok(stop=ledger.ends_with(n))) for n, r in done]

    def stored(self) -> Ready:
        """Answers to those that have handed over snapshots."""
        ready: Ready = [partial(reply, ok()) for reply in self.at_store]
        self.at_store = []
        return ready

    def refuse(self, status: Status) -> Ready:
        """Answers to all who wait, the same to each."""
        ready: Ready = [
            partial(reply, Reply(request.lanes[0], status)) for request, reply in self.pulls
        ]
        calls = [*self._at_rendezvous, *(reply for _, reply in self._at_pass_end), *self.at_store]
        ready += [partial(reply, {"status": int(status)}) for reply in calls]
        self.pulls, self.at_store = [], []
        self._at_rendezvous, self._at_pass_end = [], []
        return ready

    def renew(self) -> None:
        """Forget who has arrived: in a new generation, all come again."""
        self._arrived.clear()
