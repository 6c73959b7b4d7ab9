"""Pipelines: the layers of a network spread over trainers, beside a policy."""

from __future__ import annotations

from dataclasses import dataclass, fields

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.names import NamedParameters

__all__ = ["Pipeline"]


@dataclass(frozen=True)
class Pipeline(NamedParameters):
    """Pipeline of stages: each trainer holds some neighbouring layers, and passes on what it makes.

    A batch is cut into micro-batches that follow each other through the stages, one forward and one
    backward in turn (1F1B), so that a stage keeps the memory of few of them: as many as stages
    follow, itself and one that is on its way. The steps are those of one trainer that holds all
    layers. Where there are twice as many trainers as stages, or more, several pipelines work on
    other lanes, and same stages sum their gradients.

    Choose it when a network is too large for the memory of a worker; a network that fits learns
    sooner under ``"allreduce"``. Layers are spread so that all stages take as long, as measured;
    where workers are fewer than stages, a stage takes more layers.

    Parameters
    ----------
    stages : int, default=2
        As many as layers with parameters, at most.
    micro_batches : int, default=4
        Parts of the batch of each lane. While the first fill the stages and the last leave them,
        ``stages - 1`` of ``lanes * micro_batches + stages - 1`` turns are idle.

    References
    ----------
    Y. Huang et al., "GPipe", NeurIPS 2019. D. Narayanan et al., "PipeDream", SOSP 2019 (1F1B).

    Examples
    --------
    >>> from daskml_dist.policies import Pipeline
    >>> Pipeline(stages=2, micro_batches=8)
    Pipeline(stages=2, micro_batches=8)
    """

    stages: int = 2
    micro_batches: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidParameterError(
                    f"Pipeline({field.name}={value!r}): give an integer >= 1."
                )
