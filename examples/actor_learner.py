"""Actors play a game and learners improve its policy: reinforcement learning on a parameter server.

    python examples/actor_learner.py --workers 3

The game: walk along a row of fields to the one on the right, one field a step. Ranks but the last
are actors, which play with the parameters that they pull, and push the gradient of each game's
return (REINFORCE, Williams 1992). The last rank plays greedily, and tells how many steps it takes.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from daskml_dist.collective import ParameterServer, RankGroup, run_together

FIELDS, MOST_STEPS, GAMES = 6, 30, 150


def play(
    preferences: np.ndarray, rng: np.random.Generator, greedy: bool = False
) -> tuple[list[int], list[int]]:
    """Play one game by preferences of left and right in each field; return fields and moves."""
    field, fields, moves = 0, [], []
    while field < FIELDS - 1 and len(fields) < MOST_STEPS:
        left, right = preferences[field]
        chance = 1 / (1 + np.exp(left - right))
        move = int(chance > 0.5) if greedy else int(rng.random() < chance)
        fields.append(field)
        moves.append(move)
        field = max(0, field + 2 * move - 1)
    return fields, moves


def learn(group: RankGroup, blocks: list[Any], state: Any) -> list[int]:
    """Play and push, or watch; return the steps of the games that were watched."""
    assert group.parameters is not None
    rng, watched, mean = np.random.default_rng(group.rank), [], float(MOST_STEPS)
    watches = group.rank == group.size - 1 and group.size > 1
    for game in range(GAMES):
        preferences = group.parameters.pull()["preferences"]
        if watches and game % 10 == 0:
            watched.append(len(play(preferences, rng, greedy=True)[0]))
        fields, moves = play(preferences, rng)
        # Fewer steps than usual are a success, for which each move is made more likely.
        advantage, mean = mean - len(fields), 0.9 * mean + 0.1 * len(fields)
        gradient = np.zeros_like(preferences)
        for field, move in zip(fields, moves, strict=True):
            left, right = preferences[field]
            chance = 1 / (1 + np.exp(left - right))
            gradient[field] -= advantage * (move - chance) * np.array([-1.0, 1.0])
        group.parameters.push({"preferences": gradient})
    return watched


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with (
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        server = ParameterServer(
            {"preferences": np.zeros((FIELDS, 2))}, policy="async", learning_rate=0.05
        )
        *_, watched = run_together(client, learn, server=server)
        steps, _ = play(server.as_numpy()["preferences"], np.random.default_rng(0), greedy=True)
    print(f"steps of the games that the last rank watched: {watched}")
    print(
        f"after {server.n_updates} pushes the way takes {len(steps)} steps; {FIELDS - 1} are least"
    )


if __name__ == "__main__":
    main()
