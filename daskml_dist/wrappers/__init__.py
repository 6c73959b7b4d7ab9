"""Wrappers for estimators of other packages: fitted unchanged, applied block by block."""

from __future__ import annotations

from daskml_dist.wrappers.blockwise_voting import (
    BlockwiseVotingClassifier,
    BlockwiseVotingRegressor,
)
from daskml_dist.wrappers.parallel_post_fit import Incremental, ParallelPostFit

__all__ = [
    "BlockwiseVotingClassifier",
    "BlockwiseVotingRegressor",
    "Incremental",
    "ParallelPostFit",
]
