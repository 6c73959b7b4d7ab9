"""Failed fits of a cross-validation: what they score, and what the user is told of them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

from sklearn.exceptions import FitFailedWarning

from daskml_dist.errors import InvalidParameterError

__all__ = ["tell_failures"]


def tell_failures(errors: Sequence[str | None], error_score: Any, stacklevel: int = 4) -> None:
    """Tell of failed fits once, whatever their number.

    Parameters
    ----------
    errors : sequence of str or None
        Of every fit; None where it has not failed.
    error_score : float
        What failed fits score.

    Raises
    ------
    InvalidParameterError
        All have failed. The text, as scikit-learn has it, names the causes, the first one first.

    Warns
    -----
    FitFailedWarning
        Some have.
    """
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
        stacklevel=stacklevel,
    )
