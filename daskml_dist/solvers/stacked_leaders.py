"""Penalties whose optima are near each other: one of them leads the others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from daskml_dist.solvers.base import Array

__all__ = ["leaders"]

#: Squared distance of two optima, to the loss, within which one leads the other.
_NEAR = 3e-4


def leaders(places: Mapping[int, Array], answers: Mapping[int, Array]) -> dict[int, int]:
    """Leader of each of some optima: the nearest of few, or itself.

    The squared distance is the product of the difference of two places with that of the gradients
    there: the mean over the rows of the squared difference of their predictions, times the losses'
    curvature. How much a Hessian changes on the way follows from it.

    Parameters
    ----------
    places : mapping of int to ndarray
        Optima of one sum of losses under several penalties, neighbours one after the other.
    answers : mapping of int to ndarray
        Loss and gradient at each place, without the penalty.

    Returns
    -------
    dict of int to int
    """
    found: dict[int, int] = {}
    leading: list[int] = []
    for i, w in places.items():
        loss, gradient = float(answers[i][0]), answers[i][1:]
        nearest, best = i, np.inf
        for j in leading:
            way = (w - places[j]).ravel()
            squared = float(way @ (gradient - answers[j][1:]))
            # NaN is far.
            if squared <= _NEAR * min(loss, float(answers[j][0])) and squared < best:
                nearest, best = j, squared
        found[i] = nearest
        if nearest == i:
            leading.append(i)
    return found
