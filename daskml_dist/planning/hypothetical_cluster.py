"""Choices for hypothetical clusters: computation as measured here, synchronisation simulated.

A step on the cluster is split into two parts: computing, which takes a worker's share of its time
in this process, and synchronisation, whose waits and messages are simulated (`simulator`). Only
some steps are simulated; their mean is used for all steps of the fit.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from numbers import Integral, Real
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.planning.costs import Costs, PackedMessage
from daskml_dist.planning.families.base import Family
from daskml_dist.planning.places import imagine_place
from daskml_dist.planning.plan import Choice
from daskml_dist.planning.rows import RowsShape
from daskml_dist.planning.simulator.events import OperationCosts, Stragglers, simulate
from daskml_dist.policies import get_policy
from daskml_dist.policies.base import Policy

#: Seconds of a message at its server and at a peer, and of applying and summing a byte, measured on
#: this package's own code (`python -m benchmarks simulate`).
_NETWORK_COSTS = OperationCosts(0.0, message=5e-5, apply=3.4e-10, add=8e-11, peer=8e-6)
#: Seconds to wake a thread that waits for a message, in addition to the network latency.
_WAKE_SECONDS = 4e-5
#: Steps of each worker that are simulated; their mean is used for all steps.
_SIMULATED_STEPS = 60
#: Factor by which the range extends below and above the expected seconds: larger than for real
#: places, since nothing on this cluster was measured.
_SPREAD = 2.5
#: Prefixes of units of bandwidth, decimal as usual for networks.
_UNIT_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def simulate_choice(
    family: Family,
    estimator: Any,
    rows: RowsShape,
    inline_costs: Costs,
    *,
    start: float,
    workers: int,
    bandwidth: Any,
    latency: float,
    stragglers: float,
    policy: str | None,
) -> Choice:
    """Return the choice for workers on machines like this one, each with its own network card.

    Computing costs the same as here, for the share of each worker; synchronisation is simulated
    with the gates of the policy. Rows in memory are sent through this machine's network card.
    """
    _check_cluster(workers, latency, stragglers)
    place = imagine_place(workers, family.lanes(estimator))
    speed = parse_bandwidth(bandwidth)
    own_name = family.choice_policy(estimator)
    name = policy or own_name
    min_passes, max_passes = family.passes(estimator, inline_costs)
    if policy is not None and policy not in (own_name, *family.policies(estimator)):
        raise InvalidParameterError(
            f"policy={policy!r}: {type(estimator).__name__} is planned under "
            f"{[own_name, *family.policies(estimator)]}."
        )
    rule = family.policy(estimator) if name == own_name else get_policy(name)
    works = [family.work(estimator, rows, place, passes) for passes in (min_passes, max_passes)]
    n_exchanges = works[1].meetings
    # A pass in this process needs no messages, so its seconds are those of computing.
    compute_seconds = inline_costs.pass_seconds(works[1]) / n_exchanges
    step_seconds = simulate_step_seconds(
        rule, compute_seconds, place.lanes, works[1].message, latency, speed,
        stragglers=stragglers, packed=works[1].packed,
    )  # fmt: skip
    sent_bytes = float(rows.nbytes) if rows.kind == "memory" else 0.0
    computing = {name: v for name, v in inline_costs.values.items() if name in family.computing}
    setup = Costs(computing).setup_seconds(works[1]) + start + sent_bytes / speed
    seconds = [setup + work.passes * n_exchanges * step_seconds for work in works]
    memory = rows.nbytes / workers
    return Choice(
        estimator,
        f"{workers} workers",
        name,
        (round(min_passes), round(max_passes)),
        n_exchanges * step_seconds,
        (seconds[0] / _SPREAD, seconds[1] * _SPREAD) if memory <= place.memory_limit else None,
        sent_bytes + family.traffic(estimator, name, place, works[1]),
        memory,
        name == own_name,
        None,
    )


def _check_cluster(workers: Any, latency: Any, stragglers: Any) -> None:
    """Raise an error for invalid numbers of a hypothetical cluster."""
    if not (isinstance(workers, Integral) and int(workers) >= 1):
        raise InvalidParameterError(f"workers={workers!r}: use an integer >= 1.")
    for name, value, unit in (
        ("latency", latency, "seconds, such as 50e-6"),
        ("stragglers", stragglers, "the sigma of a lognormal factor, such as 0.1"),
    ):
        if not (isinstance(value, Real) and 0 <= float(value) < inf):
            raise InvalidParameterError(f"{name}={value!r}: use a number >= 0, {unit}.")


def simulate_step_seconds(
    policy: Policy,
    compute: float,
    workers: int,
    n_bytes: float,
    latency: float,
    bandwidth: float,
    *,
    stragglers: float = 0.0,
    packed: PackedMessage | None = None,
) -> float:
    """Return the simulated seconds from a step of all workers to the next."""
    costs = replace(
        _NETWORK_COSTS, compute=compute, latency=latency + _WAKE_SECONDS, bandwidth=bandwidth
    )
    if workers == 1:
        return compute
    out = simulate(
        policy, costs, workers,
        n_bytes=max(n_bytes, 1.0), steps=_SIMULATED_STEPS, stragglers=Stragglers(stragglers),
        packed=packed,
    )  # fmt: skip
    # Only gradients that counted: those that a round did not wait for are computed again.
    return out.seconds * workers / out.steps


def parse_bandwidth(bandwidth: Any) -> float:
    """Return bytes per second, given a number or a text such as "10Gbit" or "1.25GB"."""
    is_number = isinstance(bandwidth, Real) and not isinstance(bandwidth, bool)
    if is_number and 0 < float(bandwidth) < inf:
        return float(bandwidth)
    match = re.fullmatch(
        r"([\d.]+)\s*([kmgt]?)(bit|b)(?:it)?(?:/s|ps)?", str(bandwidth).strip(), re.IGNORECASE
    )
    if match is None or not _parse_number(match[1]):
        raise InvalidParameterError(
            f'bandwidth={bandwidth!r}: use bytes a second, or words such as "10Gbit" or "1.25GB".'
        )
    # As is usual for networks: "b" alone means bits, "B" bytes.
    bits = match[3].lower() == "bit" or match[3] == "b"
    return _parse_number(match[1]) * _UNIT_FACTORS[match[2].lower()] / (8 if bits else 1)


def _parse_number(text: str) -> float:
    """Return the number in a text of digits and points; 0, which is refused, if there is none."""
    try:
        return float(text)
    except ValueError:
        return 0.0
