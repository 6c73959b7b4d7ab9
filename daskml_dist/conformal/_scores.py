"""Conformity scores: the mismatch of a target or label with a prediction; large is bad.

Scores of regression have one column, or one for each side if the sides are calibrated separately
(`symmetric=False`). Scores of classes are computed for every label at once: a row is calibrated by
the score of its label, and a set contains the labels whose score is small enough.

References
----------
V. Vovk, A. Gammerman and G. Shafer, "Algorithmic learning in a random world", 2005. M. Sadinle,
J. Lei and L. Wasserman, "Least ambiguous set-valued classifiers with bounded error levels", JASA
114, 2019 (LAC). Y. Romano, M. Sesia and E. Candes, "Classification with valid and adaptive
coverage", NeurIPS 2020 (APS). A. Angelopoulos et al., "Uncertainty sets for image classifiers using
conformal prediction", ICLR 2021 (RAPS).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daskml_dist.data.permutations import hash_numbers
from daskml_dist.errors import InvalidDataError

Floats = NDArray[np.float64]

#: Scores of residuals that a user may choose.
RESIDUAL_SCORES = ("absolute", "relative")
#: Scores of labels that a user may choose.
LABEL_SCORES = ("lac", "aps", "raps", "top_k")


@dataclass(frozen=True)
class ResidualScore:
    """Residual of a prediction, absolute or as a share of the prediction.

    Parameters
    ----------
    relative : bool
        Whether residuals are divided by the prediction, which must then be positive.
    symmetric : bool
        Whether both sides share one score, the absolute residual.
    """

    relative: bool = False
    symmetric: bool = True

    def __call__(self, y: Floats, predicted: Floats) -> Floats:
        """Return the scores of targets, of shape (n, 1), or (n, 2) for both sides."""
        residual = (y - predicted) / self.find_units(predicted)
        if self.symmetric:
            return np.abs(residual)[:, None]
        return np.column_stack([-residual, residual])

    def find_units(self, predicted: Floats) -> Floats:
        """Return the size of a score of 1, in units of the target, at each prediction."""
        if not self.relative:
            return np.ones(predicted.shape)
        if (predicted <= 0).any():
            raise InvalidDataError(
                "conformity='relative' divides by predictions, and some are <= 0. Use "
                "conformity='absolute', or a model that only predicts positive values."
            )
        return predicted


@dataclass(frozen=True)
class QuantileScore:
    """Distance of a target from two predicted quantiles, negative between them.

    Y. Romano, E. Patterson and E. Candes, "Conformalized quantile regression", NeurIPS 2019.

    Parameters
    ----------
    symmetric : bool
        Whether both sides share one score, the larger distance.
    """

    symmetric: bool = True

    def __call__(self, y: Floats, low: Floats, high: Floats) -> Floats:
        """Return the scores of targets, of shape (n, 1), or (n, 2) for both sides."""
        sides = np.column_stack([low - y, y - high])
        return sides.max(axis=1, keepdims=True) if self.symmetric else sides


@dataclass(frozen=True)
class LabelScore:
    """Score of every label of a row, from the row's probabilities.

    Parameters
    ----------
    kind : str
        One of `LABEL_SCORES`.
    randomized : bool
        Whether APS and RAPS subtract a random share of the label's own probability, so that the
        coverage equals the requested one and is not larger.
    weight, size : float, int
        Penalty of RAPS for each label beyond the `size` most likely ones.
    seed : int
        Seed of the random shares, which are hashed from the probabilities: they depend on no
        order of rows and no chunks.
    """

    kind: str
    randomized: bool
    weight: float
    size: int
    seed: int

    def __call__(self, probabilities: Floats) -> Floats:
        """Return scores of shape (n, n_classes)."""
        p = np.asarray(probabilities, np.float64)
        if self.kind == "lac":
            return np.asarray(1 - p)
        # The most likely label first; equally likely labels in their order.
        order = np.argsort(-p, axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(p.shape[1])[None, :], axis=1)
        if self.kind == "top_k":
            return ranks.astype(np.float64) + 1
        ordered = np.take_along_axis(p, order, axis=1)
        # Probability of all labels that are at least as likely.
        scores = np.take_along_axis(np.cumsum(ordered, axis=1), ranks, axis=1)
        if self.randomized:
            scores = scores - draw_shares(p, self.seed)[:, None] * p
        if self.kind == "raps":
            scores = scores + self.weight * np.maximum(ranks + 1 - self.size, 0)
        return np.asarray(scores)


def draw_shares(rows: Floats, seed: int) -> Floats:
    """Return a number of [0, 1) for each row, hashed from its bits and a seed."""
    mixed = np.full(len(rows), np.uint64(seed))
    # Adding 0 makes -0.0 and 0.0 equal, whose bits differ.
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)
    for column in bits.T:
        mixed = hash_numbers(mixed ^ column, np.uint64(seed))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def take_label_scores(scores: Floats, label_codes: NDArray[np.intp]) -> Floats:
    """Return the score of each row's own label, of shape (n, 1)."""
    own_scores: Floats = np.take_along_axis(scores, label_codes[:, None], axis=1)
    return own_scores
