"""Policies of fits whose trainers hold parts of one model: neighbouring layers, or columns."""

from __future__ import annotations

from daskml_dist.errors import InvalidParameterError
from daskml_dist.models.base import StepModel
from daskml_dist.models.columned import ColumnModel
from daskml_dist.models.staged import StagedModel
from daskml_dist.policies import Policy
from daskml_dist.training.settings import Settings
from daskml_dist.training.spec import Streaming

__all__ = ["check_columns", "policy_of_columns", "policy_of_stages"]


def policy_of_stages(settings: Settings, stages: int, model: StepModel) -> Policy:
    """Policy of a pipeline, whose stages sum gradients and hold the parameters.

    Raises
    ------
    InvalidParameterError
    """
    policy, run = settings.policy.of_one_host(), settings.run
    if not isinstance(model, StagedModel):
        raise InvalidParameterError(
            f"{type(model).__name__} is no chain of layers that a pipeline could cut into stages. "
            "Use pipeline=None."
        )
    if not policy.sums_gradients or run.n_servers > 1 or run.compression is not None:
        raise InvalidParameterError(
            "The stages of a pipeline hold the parameters and sum the gradients of all lanes. "
            "Use policy='allreduce' or 'sync' without servers or compression, or pipeline=None."
        )
    if stages > len(model.layers):
        raise InvalidParameterError(
            f"Pipeline(stages={stages}): each stage takes a layer with parameters at least, and "
            f"the network has {len(model.layers)}. Use Pipeline(stages={len(model.layers)})."
        )
    for name, value in [("clip", settings.clip), ("micro_batch_size", settings.micro_batch)]:
        if value is not None:
            raise InvalidParameterError(
                f"{name}={value!r} is not for pipelines: each stage sees its own layers, and "
                f"Pipeline(micro_batches=) cuts the batches. Use {name}=None."
            )
    return policy


def check_columns(settings: Settings) -> None:
    """Check settings of a fit whose lanes hold columns, as far as can be told before the fit.

    Raises
    ------
    InvalidParameterError
    """
    policy, run = settings.policy.of_one_host(), settings.run
    if not policy.sums_gradients or run.n_servers > 1 or run.compression is not None:
        raise InvalidParameterError(
            f'shard="features" under policy={settings.policy.name!r}: lanes that hold columns '
            "make each step together, and the parameters stay with them. Use policy='allreduce' "
            "or 'sync' without backup workers, servers or compression, or shard=\"rows\"."
        )
    if settings.pipeline is not None:
        raise InvalidParameterError(
            'shard="features" cuts the columns of the first layer, and a pipeline cuts between '
            'layers. Use pipeline=None, or shard="rows".'
        )
    if run.on_lost_data == "skip":
        raise InvalidParameterError(
            'shard="features" with on_lost_data="skip": of rows that are lost, other lanes would '
            'still have the other columns. Use on_lost_data="raise", or shard="rows".'
        )
    if settings.micro_batch is not None:
        raise InvalidParameterError(
            f'micro_batch_size={settings.micro_batch!r} with shard="features": the sums over a '
            "batch are added up at once. Use micro_batch_size=None and a smaller batch_size."
        )


def policy_of_columns(settings: Settings, model: StepModel, streaming: Streaming | None) -> Policy:
    """Policy of lanes that hold columns: they step together, and hold the parameters.

    Raises
    ------
    InvalidParameterError
    """
    if not isinstance(model, ColumnModel):
        raise InvalidParameterError(
            f"{type(model).__name__} does not begin with products of the columns of X, which "
            'could be added up. Use shard="rows".'
        )
    if streaming is not None:
        raise InvalidParameterError(
            'shard="features" keeps its rows in memory, and they do not fit. Use more workers, a '
            'larger memory_budget, float32 or sparse rows, or shard="rows".'
        )
    return settings.policy.of_one_host()
