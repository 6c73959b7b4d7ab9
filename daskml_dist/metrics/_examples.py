"""Examples in the docstrings of metrics whose functions `_faces.py` makes."""

from __future__ import annotations

__all__ = ["example_of"]

# Rows of the examples: labels and predicted labels, scores, numbers.
_LABELS = """\
>>> y_true = np.array([0, 1, 1, 0, 1])
>>> y_pred = np.array([0, 1, 0, 0, 1])"""
_WRONG_LABELS = """\
>>> y_true = np.array([0, 1, 1, 0, 1])
>>> y_pred = np.array([1, 1, 0, 0, 1])"""
_SCORES = """\
>>> y_true = np.array([0, 1, 1, 0, 1])
>>> scores = np.array([0.1, 0.8, 0.3, 0.4, 0.9])"""
_NUMBERS = """\
>>> y_true = np.array([1.0, 2.0, 4.0])
>>> y_pred = np.array([1.5, 2.0, 3.0])"""
_TOP = """\
>>> y_true = np.array([0, 1, 2])
>>> scores = np.array([[0.5, 0.3, 0.2], [0.4, 0.5, 0.1], [0.6, 0.3, 0.1]])"""

#: Rows, and lines of a session, by the name of a function.
_EXAMPLES = {
    "balanced_accuracy_score": (_LABELS, """\
>>> round(float(balanced_accuracy_score(y_true, y_pred)), 4)
0.8333"""),
    "cohen_kappa_score": (_LABELS, """\
>>> round(float(cohen_kappa_score(y_true, y_pred)), 4)
0.6154"""),
    "f1_score": (_LABELS, """\
>>> round(float(f1_score(y_true, y_pred)), 4)
0.8"""),
    "hamming_loss": (_LABELS, """\
>>> round(float(hamming_loss(y_true, y_pred)), 4)
0.2"""),
    "jaccard_score": (_LABELS, """\
>>> round(float(jaccard_score(y_true, y_pred)), 4)
0.6667"""),
    "matthews_corrcoef": (_LABELS, """\
>>> round(float(matthews_corrcoef(y_true, y_pred)), 4)
0.6667"""),
    "precision_score": (_LABELS, """\
>>> round(float(precision_score(y_true, y_pred)), 4)
1.0"""),
    "recall_score": (_LABELS, """\
>>> round(float(recall_score(y_true, y_pred)), 4)
0.6667"""),
    "zero_one_loss": (_LABELS, """\
>>> round(float(zero_one_loss(y_true, y_pred)), 4)
0.2"""),
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
    "roc_curve": (_SCORES, """\
>>> fpr, tpr, thresholds = roc_curve(y_true, scores)
>>> fpr.tolist(), tpr.round(4).tolist()
([0.0, 0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.3333, 0.6667, 0.6667, 1.0, 1.0])"""),
    "det_curve": (_SCORES, """\
>>> fpr, fnr, thresholds = det_curve(y_true, scores)
>>> fpr.tolist(), fnr.round(4).tolist()
([0.5, 0.5, 0.0], [0.0, 0.3333, 0.3333])"""),
    "precision_recall_curve": (_SCORES, """\
>>> precision, recall, thresholds = precision_recall_curve(y_true, scores)
>>> precision.round(4).tolist(), recall.round(4).tolist()
([0.6, 0.75, 0.6667, 1.0, 1.0, 1.0], [1.0, 1.0, 0.6667, 0.6667, 0.3333, 0.0])"""),
    "calibration_curve": (_SCORES, """\
>>> true, predicted = calibration_curve(y_true, scores, n_bins=2)
>>> true.round(4).tolist(), predicted.round(4).tolist()
([0.3333, 1.0], [0.2667, 0.85])"""),
    "d2_absolute_error_score": (_NUMBERS, """\
>>> round(float(d2_absolute_error_score(y_true, y_pred)), 4)
0.5"""),
    "d2_pinball_score": (_NUMBERS, """\
>>> round(float(d2_pinball_score(y_true, y_pred)), 4)
0.5"""),
    "d2_tweedie_score": (_NUMBERS, """\
>>> round(float(d2_tweedie_score(y_true, y_pred)), 4)
0.7321"""),
    "max_error": (_NUMBERS, """\
>>> round(float(max_error(y_true, y_pred)), 4)
1.0"""),
    "mean_absolute_percentage_error": (_NUMBERS, """\
>>> round(float(mean_absolute_percentage_error(y_true, y_pred)), 4)
0.25"""),
    "mean_gamma_deviance": (_NUMBERS, """\
>>> round(float(mean_gamma_deviance(y_true, y_pred)), 4)
0.0785"""),
    "mean_pinball_loss": (_NUMBERS, """\
>>> round(float(mean_pinball_loss(y_true, y_pred)), 4)
0.25"""),
    "mean_poisson_deviance": (_NUMBERS, """\
>>> round(float(mean_poisson_deviance(y_true, y_pred)), 4)
0.1635"""),
    "mean_squared_log_error": (_NUMBERS, """\
>>> round(float(mean_squared_log_error(y_true, y_pred)), 4)
0.0332"""),
    "mean_tweedie_deviance": (_NUMBERS, """\
>>> round(float(mean_tweedie_deviance(y_true, y_pred)), 4)
0.4167"""),
    "median_absolute_error": (_NUMBERS, """\
>>> round(float(median_absolute_error(y_true, y_pred)), 4)
0.5"""),
    "root_mean_squared_log_error": (_NUMBERS, """\
>>> round(float(root_mean_squared_log_error(y_true, y_pred)), 4)
0.1822"""),
    "top_k_accuracy_score": (_TOP, """\
>>> round(float(top_k_accuracy_score(y_true, scores, k=2)), 4)
0.6667"""),
}  # fmt: skip


def example_of(name: str, module: str) -> str:
    """Return the section ``Examples`` of a function's docstring; empty where there is none."""
    if name not in _EXAMPLES:
        return ""
    rows, lines = _EXAMPLES[name]
    room = ".".join(module.split(".")[:2])
    imports = f">>> import numpy as np\n>>> from {room} import {name}"
    return f"\n\nExamples\n--------\n{imports}\n{rows}\n{lines}\n"
