"""Private names of scikit-learn, each looked up at its first import from here.

No other module of the package imports a private name of scikit-learn. Releases of scikit-learn may
move such a name without notice: importing it from here then fails with an error that names the part
of the package that needs it, and `tests/contracts/test_sklearn_internals.py` fails too.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import sklearn

__all__ = ["PRIVATE_NAMES"]

#: For each name here: "module:name" in scikit-learn, and the part of the package that needs it.
#: Names here are independent of scikit-learn's, so that a rename there changes one line of this
#: table.
PRIVATE_NAMES = {
    "BinMapper": (
        "sklearn.ensemble._hist_gradient_boosting.binning:_BinMapper",
        "export of gradient boosting",
    ),
    "BisectingTree": (
        "sklearn.cluster._bisect_k_means:_BisectingTree",
        "export of BisectingKMeans",
    ),
    "PREDICTOR_RECORD_DTYPE": (
        "sklearn.ensemble._hist_gradient_boosting.common:PREDICTOR_RECORD_DTYPE",
        "export of gradient boosting",
    ),
    "CalibratedClassifier": (
        "sklearn.calibration:_CalibratedClassifier",
        "CalibratedClassifierCV on Dask collections",
    ),
    "SigmoidCalibration": (
        "sklearn.calibration:_SigmoidCalibration",
        "CalibratedClassifierCV(method='sigmoid') on Dask collections",
    ),
    "SklearnParameterError": (
        "sklearn.utils._param_validation:InvalidParameterError",
        "translation of scikit-learn's errors",
    ),
    "TreePredictor": (
        "sklearn.ensemble._hist_gradient_boosting.predictor:TreePredictor",
        "export of gradient boosting",
    ),
    "assign_values": ("sklearn.utils._indexing:_safe_assign", "partial_dependence"),
    "compare_feature_names": (
        "sklearn.utils.validation:_check_feature_names",
        "checks of column names",
    ),
    "convert_beta_loss": ("sklearn.decomposition._nmf:_beta_loss_to_float", "export of NMF"),
    "count_openmp_threads": (
        "sklearn.utils._openmp_helpers:_openmp_effective_n_threads",
        "export of KMeans",
    ),
    "get_output_config": (
        "sklearn.utils._set_output:_get_output_config",
        "containers that set_output asks for",
    ),
    "get_response_values": ("sklearn.utils._response:_get_response_values", "partial_dependence"),
    "infer_dimension": ("sklearn.decomposition._pca:_infer_dimension", "PCA(n_components='mle')"),
    "is_constant_feature": (
        "sklearn.preprocessing._data:_is_constant_feature",
        "StandardScaler on constant columns",
    ),
    "is_metadata_routing_enabled": (
        "sklearn.utils._metadata_requests:_routing_enabled",
        "metadata routing",
    ),
    "is_scalar_nan": ("sklearn.utils._missing:is_scalar_nan", "SimpleImputer"),
    "raise_for_params": (
        "sklearn.utils._metadata_requests:_raise_for_params",
        "parameters of fit without metadata routing",
    ),
    "replace_zero_scales": (
        "sklearn.preprocessing._data:_handle_zeros_in_scale",
        "scalers on constant columns",
    ),
    "set_output_module": ("sklearn.utils._set_output:", "transformers of few rows"),
    "take_rows_or_columns": ("sklearn.utils:_safe_indexing", "splits of rows in memory"),
    "tree_module": ("sklearn.tree._tree:", "export of trees and forests"),
    "validate_parameter_constraints": (
        "sklearn.utils._param_validation:validate_parameter_constraints",
        "export of estimators",
    ),
}


def __getattr__(name: str) -> Any:
    """Return a private object of scikit-learn by its name here."""
    if name not in PRIVATE_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path, need = PRIVATE_NAMES[name]
    module, _, private = path.partition(":")
    try:
        private_object: Any = import_module(module)
        private_object = getattr(private_object, private) if private else private_object
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"scikit-learn {sklearn.__version__} has no {path.replace(':', '.').rstrip('.')}, "
            f"which is needed for: {need}. Install a version of scikit-learn that this version of "
            "daskml-dist is tested with (see its pyproject.toml), or a newer daskml-dist."
        ) from error
    globals()[name] = private_object  # the next access does not call this function
    return private_object
