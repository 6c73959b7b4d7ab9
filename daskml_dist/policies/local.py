"""Local SGD: lanes train independently, and their parameters are averaged every few steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from daskml_dist.errors import InvalidParameterError
from daskml_dist.optimizers.base import Optimizer
from daskml_dist.policies.base import Gate, Policy, PolicyLoop, QuorumGate, is_number
from daskml_dist.policies.paces import LanePaces

__all__ = ["LocalSGD"]


@dataclass(frozen=True)
class LocalSGD(Policy):
    """Local steps with periodic averages: ``"local"``.

    Each lane trains independently; every `sync_every` steps the parameters of all lanes are
    averaged, weighted by the lanes' rows: by the sums of their weights if they have any.

    Choose it when the network is slow compared to a gradient: it sends `sync_every` times less than
    ``"allreduce"``. If workers have unequal speeds, or join and leave, set a `quorum`; if lanes
    should not wait for the network, set `fragments`. Lanes then exchange parameters through the
    servers instead of stepping in lock-step: a lane that is late, stopped or lost delays no other
    (decoupled DiLoCo).

    Parameters
    ----------
    sync_every : int, default=16
        Local steps between two averages.
    outer : {"nesterov", "delayed_nesterov", "adam", "muon", "momentum", "adagrad", "sgd"}, \
Optimizer or None, default=None
        Optimizer of the step from the last average, which uses the lanes' mean progress as its
        gradient. ``"nesterov"`` is DiLoCo's, for some hundred local steps. ``"delayed_nesterov"``
        adds the momentum only at each fourth step, for a `quorum` of few lanes. ``"adam"`` and
        ``"adagrad"`` are those of federated optimisation, for lanes whose rows differ. ``"muon"``
        makes the progress of each matrix orthogonal, for networks. None: take the new average or,
        with one of the next two parameters, step towards it with Nesterov momentum.
    outer_rate : float or None, default=None
        Learning rate of these steps; for SGD and momentum in units of the distance to the new
        average. None: 0.7 for ``"momentum"`` and both Nesterov variants, 0.01 for ``"adam"`` and
        ``"muon"``, 0.03 for ``"adagrad"``, else 1.
    outer_momentum : float or None, default=None
        Momentum of these steps, or Adam's first decay. None: 0.9, and 0 without `outer`.
    quorum : int or None, default=None
        Fewest lanes in an average, weighted by the rows on which they stepped. Later lanes join the
        next average, so no progress is lost. None: all lanes.
    grace : float, default=0.0
        Seconds that an average waits for more lanes once it has its quorum.
    steps_by_speed : bool, default=False
        Whether lanes that are slower than the fastest send after fewer steps: the number that they
        make in the time of its `sync_every` steps, and at least a sixteenth. Their progress is then
        as fresh as that of the others. Needs a `quorum`.
    fragments : int, default=0
        Parts of the parameters that are averaged one after the other, spread over the `sync_every`
        steps, while the lanes continue to step; their progress in the meantime is added to the
        average. Each part has its own server. 0: lanes wait for the average.

    References
    ----------
    P. Moritz et al., "SparkNet: Training Deep Networks in Spark", ICLR 2016.
    A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023;
    "Streaming DiLoCo with Overlapping Communication", 2025 (fragments); "Decoupled DiLoCo for
    Resilient Distributed Pre-training", 2026 (quorum, grace).
    B. Liu et al., "Asynchronous Local-SGD Training for Language Modeling", 2024 (delayed Nesterov,
    steps by speed).
    S. Reddi et al., "Adaptive Federated Optimization", ICLR 2021 (outer Adam and Adagrad).

    Examples
    --------
    >>> from daskml_dist.policies import LocalSGD
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> SGDClassifier(policy=LocalSGD(sync_every=64, outer="nesterov", quorum=6)).policy.quorum
    6
    """

    name = "local"
    sync_every: int = 16
    outer: str | Optimizer | None = None
    outer_rate: float | None = None
    outer_momentum: float | None = None
    quorum: int | None = None
    grace: float = 0.0
    steps_by_speed: bool = False
    fragments: int = field(default=0, metadata={"least": 0})

    def __post_init__(self) -> None:
        super().__post_init__()
        quorum, grace = self.quorum, self.grace
        is_integer = isinstance(quorum, int) and not isinstance(quorum, bool)
        if quorum is not None and not (is_integer and quorum >= 1):
            raise InvalidParameterError(
                f"LocalSGD(quorum={quorum!r}): give an integer >= 1, or None for all lanes."
            )
        if not (is_number(grace) and grace >= 0):
            raise InvalidParameterError(
                f"LocalSGD(grace={grace!r}): give a finite number >= 0 of seconds."
            )
        if grace and quorum is None:
            raise InvalidParameterError(
                f"LocalSGD(grace={grace!r}) is the time to wait after the quorum, but without "
                "`quorum` all lanes are awaited. Give a quorum, or leave out grace."
            )
        if not isinstance(self.steps_by_speed, bool):
            raise InvalidParameterError(
                f"LocalSGD(steps_by_speed={self.steps_by_speed!r}): give True or False."
            )
        if self.steps_by_speed and quorum is None:
            raise InvalidParameterError(
                "LocalSGD(steps_by_speed=True) lets slow lanes send more often than others, but "
                "without `quorum` all lanes are awaited in each round. Give a quorum, or leave out "
                "steps_by_speed."
            )
        if self.fragments > self.sync_every:
            raise InvalidParameterError(
                f"LocalSGD(fragments={self.fragments}, sync_every={self.sync_every}): at most one "
                "part is exchanged after each step. Use fewer fragments, or a larger sync_every."
            )

    @property
    def loop(self) -> PolicyLoop:  # type: ignore[override]
        """Return the loop: ``"decoupled"``, on servers, if lanes do not wait for all others."""
        return "replicas" if self.quorum is None and not self.fragments else "decoupled"

    def gate(self, lanes: Iterable[int], clock: int = 0) -> Gate:
        """Return the state machine of one shard (or of the pass reports)."""
        if self.loop == "replicas":
            return super().gate(lanes, clock)
        paces = None
        if self.steps_by_speed:
            paces = LanePaces(self.sync_every, least_steps=max(1, self.fragments))
        return QuorumGate(
            lanes, clock, quorum=self.quorum, grace=self.grace, paces=paces,
            lanes_wait=not self.fragments,
        )  # fmt: skip

    @property
    def average_every(self) -> int:  # type: ignore[override]
        """Return `sync_every`, under the name that the loops read."""
        return self.sync_every
