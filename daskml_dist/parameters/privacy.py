"""Checks of private fits: refuse every way in which rows could affect a model without noise.

The privacy accountant counts steps that draw each row with the same probability, clip its gradient,
and add noise to the sum of the gradients. Anything else that depends on rows (a learning rate tuned
to them, their weights, a stopping rule based on their loss) would reveal information that the
accountant does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from daskml_dist.errors import InvalidParameterError
from daskml_dist.policies import AllReduce, Synchronous
from daskml_dist.privacy import DP
from daskml_dist.training.spec import Settings


def check_privacy(privacy: Any) -> None:
    """Check that `privacy` is a budget or None."""
    if not (privacy is None or isinstance(privacy, DP)):
        raise InvalidParameterError(
            f"privacy={privacy!r}: use daskml_dist.DP, for example privacy=DP(epsilon=3.0, "
            "delta=1e-5), or None."
        )


def make_private_settings(
    settings: Settings, params: Mapping[str, Any], *, goes_on: bool
) -> Settings:
    """Return the settings of a private fit; raise for a setting that uses rows without noise.

    `params` are the estimator's parameters as given by the user; `goes_on` states whether the fit
    continues an earlier one. All `max_iter` passes are made, because a tolerance depends on losses.
    The fit starts from the model's own initial parameters with the optimizer's own learning rate,
    because a pilot depends on rows.
    """
    refusal = next(_list_refusals(settings, params, goes_on), None)
    if refusal is not None:
        setting, reason, remedy = refusal
        raise InvalidParameterError(f"{setting} with privacy=: {reason}. {remedy}")
    run = replace(settings.run, device="cpu")
    return replace(settings, tol=None, calibrates=False, run=run)


def _list_refusals(
    settings: Settings, params: Mapping[str, Any], goes_on: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield each setting that cannot be private, with the reason and the remedy."""
    policy, run = settings.policy, settings.run
    if type(policy) not in (Synchronous, AllReduce):
        yield (
            f"policy={policy.name!r}",
            "noise is added once to the sum of all lanes' gradients at the same parameters, but "
            "under this policy lanes step alone or push at different times",
            'Use policy="sync" or "allreduce".',
        )
    if getattr(policy, "backup_workers", 0):
        yield (
            f"backup_workers={policy.backup_workers}",  # type: ignore[attr-defined]
            (
                "each batch is drawn from the rows of all lanes, but a round could close without "
                "some lanes"
            ),
            "Use Synchronous().",
        )
    if settings.validation_fraction:
        yield (
            "early_stopping=True",
            "the score of held-out rows would decide when to stop, and noise does not protect it",
            "Use early_stopping=False, and score your own rows with eval_set.",
        )
    callbacks = params.get("callbacks")
    callback_list = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    if any(
        getattr(callback, "monitor", None) in ("loss", "val_score") for callback in callback_list
    ):
        yield (
            'monitor="loss"',
            "the losses of the passes are not reported, since noise does not protect them",
            'Use monitor="eval_score" with your own rows in eval_set.',
        )
    if settings.class_weight is not None:
        yield (
            f"class_weight={settings.class_weight!r}",
            "weights are scaled by their mean, which each row changes for all others",
            "Use class_weight=None.",
        )
    if goes_on:
        yield (
            "warm_start=True",
            "the budget is for one fit, and the previous fit has already used its rows",
            "Use warm_start=False, or a new estimator; a public starting point can be given as "
            "coef_init.",
        )
    if params.get("checkpoint") is not None:
        yield (
            "checkpoint=",
            "a fit that resumes would draw other batches and other noise for the same steps",
            "Use checkpoint=None.",
        )
    if isinstance(params.get("learning_rate"), str) and params["learning_rate"] == "adaptive":
        yield (
            'learning_rate="adaptive"',
            "the losses of the passes would decide the rate, and noise does not protect them",
            "Use a number or a schedule, such as the optimizer's own rate.",
        )
    group_optimizers = [
        o.optimizer for o in (settings.groups or {}).values() if o.optimizer is not None
    ]
    if any(optimizer.uses_scales for optimizer in (settings.optimizer, *group_optimizers)):
        yield (
            f"optimizer={params.get('optimizer')!r}",
            "it reads the scales of the features from the rows",
            'Use "adagrad", "adam" or "sgd", and scale the features by known bounds.',
        )
    if settings.pipeline is not None:
        yield (
            "pipeline=",
            "the norm of a row's gradient involves all layers, but a stage only knows its own",
            "Use pipeline=None.",
        )
    if run.compression is not None:
        yield (
            f"compression={run.compression.name!r}",
            "what a push leaves out is added to later ones, so a row would influence steps that "
            "did not draw it",
            "Use compression=None.",
        )
    if run.shard == "features":
        yield (
            'shard="features"',
            "the norm of a row's gradient involves all columns, but a lane has only some of them",
            'Use shard="rows".',
        )
    if run.on_lost_data != "raise":
        yield (
            f"on_lost_data={run.on_lost_data!r}",
            "lost rows would change the probability of being drawn for all others",
            'Use on_lost_data="raise".',
        )
    if run.device == "gpu" or run.compute_dtype is not None:
        text = 'device="gpu"' if run.device == "gpu" else f"compute_dtype={run.compute_dtype!r}"
        yield (
            text,
            "gradients of rows are only clipped on the CPU",
            'Use device="auto" or "cpu", and compute_dtype=None.',
        )


def refuse_weights() -> InvalidParameterError:
    """Return the error for sample weights in a private fit."""
    return InvalidParameterError(
        "sample_weight with privacy=: weights are scaled by their mean, which each row changes for "
        "all others. Leave sample_weight out."
    )


def refuse_more_rows() -> InvalidParameterError:
    """Return the error for private fits whose number of steps is not known in advance."""
    return InvalidParameterError(
        "partial_fit and stream with privacy=: the noise depends on the number of steps, which "
        "is not known in advance. Use fit, or privacy=None."
    )
