"""Factory of public metric functions with the signature of scikit-learn's.

Such a function calls scikit-learn's on rows in memory, and a reduction of one or two passes on Dask
collections. Its options have scikit-learn's meaning. The docstring is made from a template and a
table of examples, so that about thirty functions need no separate docstrings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from daskml_dist.errors.signatures import make_argument_error
from daskml_dist.metrics._columns import ScoredColumns, has_lazy_input

#: Parameter that scikit-learn's function does not have, and its description.
ExtraOption = tuple[inspect.Parameter, str]


_METRIC_DOC = """{summary}

Parameters
----------
{names} : dask Array, Series or DataFrame, or array-like
    {columns}
sample_weight : like `{first}`, or a float, or None
    Only if scikit-learn's function takes weights.{options}{own}

Returns
-------
object
    The result of :func:`{source}` for the same rows in memory.

Raises
------
InvalidTypeError
    There is no such argument, or one is missing.
InvalidParameterError
    An option has no meaning here.
InvalidDataError
    The columns cannot be aligned, hold NaN or values without a score; the weights sum to zero.
{notes}"""


def make_metric_function(
    source: Callable[..., Any],
    lazily: Callable[..., Any],
    columns: ScoredColumns,
    summary: str,
    *,
    column_description: str,
    module: str,
    extra_option: ExtraOption | None = None,
    notes: str = "",
) -> Callable[..., Any]:
    """Return the public function of a metric: `source` on rows in memory, else `lazily`.

    `summary`, `column_description` (a description of the columns) and `notes` go into its
    docstring. `extra_option` is a parameter for Dask collections only. `module` is the module in
    which the function shall appear to be defined.
    """
    name, sklearn_signature = source.__name__, inspect.signature(source)
    # scikit-learn names the columns differently: y_score, y_prob, labels_pred.
    parameters = list(sklearn_signature.parameters.values())
    first, second = (parameter.name for parameter in parameters[:2])
    option_names = [f"`{p.name}`" for p in parameters[2:] if p.name != "sample_weight"]
    if extra_option is not None:
        # Last and keyword-only, so that positional arguments mean the same as in scikit-learn.
        parameters.append(extra_option[0])
    signature = sklearn_signature.replace(parameters=parameters)

    def metric(*args: Any, **kwargs: Any) -> Any:
        # Only the options that were given: the defaults are those of `source` and `lazily`.
        try:
            options = dict(signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise make_argument_error(name, metric, args, kwargs) from error
        y_true, y_pred = options.pop(first), options.pop(second)
        weight = options.pop("sample_weight", None)
        if has_lazy_input(y_true, y_pred, weight):
            return lazily(y_true, y_pred, weight, **options)
        if extra_option is not None:
            # Only for collections: `source` has no such parameter.
            options.pop(extra_option[0].name, None)
        return columns.score_in_memory(source, y_true, y_pred, weight, **options)

    # Options are only named: scikit-learn's documentation describes them.
    options_text = (
        "\n**options\n    As in scikit-learn: " + ", ".join(option_names) + "."
        if option_names
        else ""
    )
    text = _METRIC_DOC.format(
        summary=summary,
        names=f"{first}, {second}",
        first=first,
        columns=column_description,
        source=f"{'sklearn.calibration' if 'calib' in name else 'sklearn.metrics'}.{name}",
        options=options_text,
        own="" if extra_option is None else f"\n{extra_option[0].name}\n    {extra_option[1]}",
        notes=notes,
    ).rstrip("\n")
    metric.__doc__ = f"{text}{_format_example(name, module)}"
    # As if it were written out in `module`: for help, pickling by name, and inspection.
    metric.__name__ = metric.__qualname__ = name
    metric.__module__ = module
    setattr(metric, "__signature__", signature)  # noqa: B010 - mypy knows no such attribute
    return metric


# --- examples --------------------------------------------------------------------------------


def _format_example(name: str, module: str) -> str:
    """Return the section ``Examples`` of a docstring; empty for a metric without an example."""
    if name not in _EXAMPLES:
        return ""
    rows, lines = _EXAMPLES[name]
    # From the public package, "daskml_dist.metrics", not from the module.
    package = ".".join(module.split(".")[:2])
    imports = f">>> import numpy as np\n>>> from {package} import {name}"
    return f"\n\nExamples\n--------\n{imports}\n{rows}\n{lines}\n"


#: Rows of the examples. The texts run as doctests, so a wrong score fails.
_LABELS = """\
>>> y_true = np.array([0, 1, 1, 0, 1])
>>> y_pred = np.array([0, 1, 0, 0, 1])"""


_WRONG_LABELS = """\
>>> y_true = np.array([0, 1, 1, 0, 1])
>>> y_pred = np.array([1, 1, 0, 0, 1])"""


_TARGETS_EXAMPLE = """\
>>> y_true = np.array([1.0, 2.0, 4.0])
>>> y_pred = np.array([1.5, 2.0, 3.0])"""


_SCORES_EXAMPLE = """\
>>> y_true = np.array([0, 1, 1, 0, 1])
>>> scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])"""


_CLASS_SCORES_EXAMPLE = """\
>>> y_true = np.array([0, 1, 2])
>>> scores = np.array([[0.5, 0.3, 0.2], [0.4, 0.5, 0.1], [0.6, 0.3, 0.1]])"""


#: Scores of `_LABELS` (below, of `_TARGETS_EXAMPLE`), rounded to 4 digits, by the name of a metric.
_LABEL_SCORES = {
    "balanced_accuracy_score": 0.8333,
    "cohen_kappa_score": 0.6154,
    "f1_score": 0.8,
    "hamming_loss": 0.2,
    "jaccard_score": 0.6667,
    "matthews_corrcoef": 0.6667,
    "precision_score": 1.0,
    "recall_score": 0.6667,
    "zero_one_loss": 0.2,
}


_NUMBER_SCORES = {
    "d2_absolute_error_score": 0.5,
    "d2_pinball_score": 0.5,
    "d2_tweedie_score": 0.7321,
    "max_error": 1.0,
    "mean_absolute_percentage_error": 0.25,
    "mean_gamma_deviance": 0.0785,
    "mean_pinball_loss": 0.25,
    "mean_poisson_deviance": 0.1635,
    "mean_squared_log_error": 0.0332,
    "mean_tweedie_deviance": 0.4167,
    "median_absolute_error": 0.5,
    "root_mean_squared_log_error": 0.1822,
}


#: Rows, and the following lines of the example, by the name of a metric.
_EXAMPLES = {
    name: (rows, f">>> round(float({name}(y_true, y_pred)), 4)\n{score}")
    for rows, scores in ((_LABELS, _LABEL_SCORES), (_TARGETS_EXAMPLE, _NUMBER_SCORES))
    for name, score in scores.items()
} | {
    "fbeta_score": (_LABELS, """\
>>> round(float(fbeta_score(y_true, y_pred, beta=2.0)), 4)
0.7143"""),
    "multilabel_confusion_matrix": (_LABELS, """\
>>> multilabel_confusion_matrix(y_true, y_pred).tolist()
[[[2, 1], [0, 2]], [[2, 0], [1, 2]]]"""),
    "classification_report": (_LABELS, """\
>>> report = classification_report(y_true, y_pred, output_dict=True)
>>> round(report['1']['recall'], 4)
0.6667"""),
    "class_likelihood_ratios": (_WRONG_LABELS, """\
>>> [round(float(ratio), 4) for ratio in class_likelihood_ratios(y_true, y_pred)]
[1.3333, 0.6667]"""),
    "precision_recall_fscore_support": (_LABELS, """\
>>> precision, recall, f1, support = precision_recall_fscore_support(y_true, y_pred)
>>> recall.round(4).tolist(), support.tolist()
([1.0, 0.6667], [2, 3])"""),
    "roc_curve": (_SCORES_EXAMPLE, """\
>>> fpr, tpr, thresholds = roc_curve(y_true, scores)
>>> fpr.tolist(), tpr.round(4).tolist()
([0.0, 0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.3333, 0.6667, 0.6667, 1.0, 1.0])"""),
    "det_curve": (_SCORES_EXAMPLE, """\
>>> fpr, fnr, thresholds = det_curve(y_true, scores)
>>> fpr.tolist(), fnr.round(4).tolist()
([0.5, 0.5, 0.0], [0.0, 0.3333, 0.3333])"""),
    "precision_recall_curve": (_SCORES_EXAMPLE, """\
>>> precision, recall, thresholds = precision_recall_curve(y_true, scores)
>>> precision.round(4).tolist(), recall.round(4).tolist()
([0.6, 0.75, 0.6667, 1.0, 1.0, 1.0], [1.0, 1.0, 0.6667, 0.6667, 0.3333, 0.0])"""),
    "calibration_curve": (_SCORES_EXAMPLE, """\
>>> true, predicted = calibration_curve(y_true, scores, n_bins=2)
>>> true.round(4).tolist(), predicted.round(4).tolist()
([0.3333, 1.0], [0.2667, 0.85])"""),
    "top_k_accuracy_score": (_CLASS_SCORES_EXAMPLE, """\
>>> round(float(top_k_accuracy_score(y_true, scores, k=2)), 4)
0.6667"""),
}  # fmt: skip
