"""Failed fits of a cross-validation: what they score, and what the user is told of them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sklearn.exceptions import FitFailedWarning

from daskml_dist.errors import InvalidParameterError
from daskml_dist.errors.stack_level import user_stack_level

__all__ = ["safe", "tell_failures"]


def tell_failures(errors: Sequence[str | None], error_score: Any) -> None:
    """Tell of failed fits once, whatever their number."""
    failed = [error for error in errors if error is not None]
    if not failed:
        return
    line = "-" * 80
    causes = "\n".join(
        f"{line}\n{n} fits failed with the following error:\n{error}"
        for error, n in Counter(failed).items()
    )
    if len(failed) == len(errors):
        raise InvalidParameterError(
            f"\nAll the {len(failed)} fits failed.\nIt is very likely that your model is "
            "misconfigured.\nYou can try to debug the error by setting error_score='raise'.\n\n"
            f"Below are more details about the failures:\n{causes}"
        )
    warnings.warn(
        f"\n{len(failed)} fits failed out of a total of {len(errors)}.\nThe score on these "
        f"train-test partitions for these parameters will be set to {error_score}.\nIf these "
        "failures are not expected, you can try to debug them by setting error_score='raise'.\n\n"
        f"Below are more details about the failures:\n{causes}",
        FitFailedWarning,
        stacklevel=user_stack_level(),
    )


@dataclass(frozen=True, eq=False)
class _Told:
    """A scorer that tells of its failure, and scores what the user says, rather than raising.

    Parameters
    ----------
    score : callable
    error_score : "raise" or float
    """

    score: Callable[..., Any]
    error_score: Any

    def __call__(self, *args: Any, **params: Any) -> float:
        try:
            found = self.score(*args, **params)
            if not isinstance(found, Mapping):
                return float(found)
        except Exception as error:
            if self.error_score == "raise":
                raise
            warnings.warn(
                "Scoring failed. The score on this train-test partition for these parameters will "
                f"be set to {self.error_score}. Details: \n{type(error).__name__}: {error}",
                UserWarning,
                stacklevel=user_stack_level(),
            )
            return float(self.error_score)
        raise InvalidParameterError(
            f"scoring: a callable has returned several scores, {sorted(found)}, which is for "
            "rows in memory. Name each of them: scoring={name: callable, ...}."
        )


def safe(scorers: Mapping[str, Any], error_score: Any) -> dict[str, Any]:
    """Scorers that tell of their failures, and score `error_score` where they fail."""
    return {name: _Told(score, error_score) for name, score in scorers.items()}
