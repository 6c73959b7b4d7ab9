"""Functions that the processes of a Dask cluster run together: collectives, parameter servers."""

from __future__ import annotations

from daskml_dist.collective.parameter_server import ParameterServer
from daskml_dist.collective.run import run_together
from daskml_dist.comm.rank_group import RankGroup, RankParameters

__all__ = ["ParameterServer", "RankGroup", "RankParameters", "run_together"]
