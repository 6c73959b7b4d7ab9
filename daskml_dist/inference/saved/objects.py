"""Objects as JSON and named arrays, and back: attributes are set without running a file's code.

Values without a form in JSON (tuples, arrays, objects, NaN) are mappings with the key ``"$"``,
whose value is the kind. Arrays are stored beside the JSON, under their path of attributes, such as
``coef_`` or ``_trees.bins.edges.0``; an array that several attributes share is stored once.

A file may be forged. So an object is made only if its class is known to hold data only, or is
trusted by the reader; it is made without its constructor, and no method of a class is called; and
no array may need far more memory than its bytes in the file. Files of skops are checked against the
same list of classes, since skops' own list does not have this package's.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import ModelFileError

#: Subpackages whose classes hold data only, and are loaded without being listed as trusted.
_TRUSTED_SUBPACKAGES = (
    "calibration", "cluster", "compose", "compression", "conformal", "decomposition",
    "ensemble", "feature_extraction", "feature_selection", "frequent_patterns", "graph", "impute",
    "linear_model", "losses",
    "metrics", "mixture", "model_selection", "models", "naive_bayes", "neural_network",
    "optimizers", "parameters.run", "penalties", "policies", "preprocessing", "privacy",
    "ps.shard_state",
    "recommender", "schedules", "solvers", "svm", "training.history", "tree", "wrappers",
)  # fmt: skip
#: Classes and functions of scikit-learn and NumPy that hold data only, and that skops does not
#: trust by itself.
_TRUSTED_NAMES = frozenset(
    (
        "builtins.object",  # columns are selected by such
        "numpy.dtype",
        "numpy.floating",
        "numpy.integer",
        "numpy.number",
        "sklearn._loss.loss.HalfTweedieLoss",
        "sklearn._loss.loss.HalfTweedieLossIdentity",
        "sklearn.calibration._CalibratedClassifier",
        "sklearn.calibration._SigmoidCalibration",
        "sklearn.calibration._TemperatureScaling",
        "sklearn.cluster._bisect_k_means._BisectingTree",
        "sklearn.compose._column_transformer.make_column_selector",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.metrics._scorer._PassthroughScorer",
        "sklearn.metrics._scorer._Scorer",
        "sklearn.model_selection._search_successive_halving.HalvingGridSearchCV",
        "sklearn.model_selection._search_successive_halving.HalvingRandomSearchCV",
        "sklearn.multiclass._ConstantPredictor",
        "sklearn.utils._bunch.Bunch",
    )
)
#: Modules of scikit-learn whose classes and functions all are splitters, and scores of features.
_TRUSTED_MODULES = (
    "sklearn.feature_selection._univariate_selection.",
    "sklearn.model_selection._split.",
)


def check_trusted(types: Iterable[str], trusted: Collection[str], name: str) -> list[str]:
    """Return the sorted names of a file's types; raise if one is neither known nor trusted."""
    types = sorted(types)
    if unknown := [one for one in find_untrusted(types) if one not in trusted]:
        raise ModelFileError(
            f"{name} is made of {', '.join(unknown)}, which may contain more than data, so it is "
            "not loaded unless you say so. If you trust the author of the file, pass "
            f"load({name!r}, trusted={unknown}); a server is started with "
            f"{' '.join(f'--trusted {one}' for one in unknown)}."
        )
    return types


def find_untrusted(types: Iterable[str]) -> list[str]:
    """Return the sorted names of types that are loaded only if the user trusts them by name."""
    return sorted(one for one in types if not _is_known(one))


def check_findable(types: Iterable[str], name: str) -> None:
    """Raise if a class from outside this package could not be imported when a file is read."""
    for one in find_untrusted(types):
        if not _can_be_found(one):
            raise ModelFileError(
                f"This {name} contains {one}, which other processes cannot import. Define the "
                "class at the top level of a module; or save a network as .safetensors, which "
                "needs no class."
            )


def _can_be_found(name: str) -> bool:
    """Return whether a class can be imported by its full name."""
    module, _, short = name.rpartition(".")
    try:
        return hasattr(import_module(module), short)
    except (ImportError, ValueError):
        return False


def _is_known(name: str) -> bool:
    """Return whether a type is known to hold data only."""
    ours = any(name.startswith(f"daskml_dist.{subpackage}.") for subpackage in _TRUSTED_SUBPACKAGES)
    return (
        ours
        or name in _TRUSTED_NAMES
        or name.startswith(_TRUSTED_MODULES)
        or name in _list_score_functions()
    )


@cache
def _list_score_functions() -> frozenset[str]:
    """Return the names of the functions of scikit-learn's scorers (``scoring="roc_auc"``)."""
    from sklearn.metrics import get_scorer, get_scorer_names

    scorers = map(get_scorer, get_scorer_names())
    functions = {one._score_func for one in scorers if hasattr(one, "_score_func")}
    return frozenset(f"{one.__module__}.{one.__qualname__}" for one in functions)


#: Key of the mappings for values without a form in JSON.
_KIND_KEY = "$"
_PACKAGE = "daskml_dist"
#: Error handler of UTF-8: names of columns and labels may hold lone surrogates.
_SURROGATES = "surrogatepass"
#: Bytes that any array of texts may have, and additional bytes for each byte of its texts in the
#: file: a forged dtype could otherwise fill the memory.
_MIN_TEXT_BYTES, _MAX_TEXT_EXPANSION = 2**20, 1000
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Writer:
    """Encoder of objects as JSON and arrays, named by the path of attributes to them.

    Parameters
    ----------
    replaced : mapping of int to object
        Objects to encode in place of others, by the ``id`` of these.

    Attributes
    ----------
    tensors : dict of str to ndarray
        Arrays of the objects that have been encoded.
    """

    def __init__(self, replaced: Mapping[int, Any] | None = None) -> None:
        self.tensors: dict[str, NDArray[Any]] = {}
        self._replaced = dict(replaced or {})
        # JSON of each array by its `id`; the array is kept alive, so that no other gets the same
        # `id`.
        self._names: dict[int, tuple[str, Any]] = {}

    def encode(self, value: Any, name: str) -> Any:
        """Return the JSON of an attribute's value; `name` is the path of attributes to it."""
        value = self._replaced.get(id(value), value)
        # Types are compared exactly: a subclass, such as an enum of integers, would be lost in
        # JSON.
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {_KIND_KEY: "float", "value": str(value)}
        if isinstance(value, np.generic):
            return {_KIND_KEY: "scalar", "value": self._array(np.asarray(value), name)}
        if type(value) is np.ndarray:
            return self._array(value, name)
        if isinstance(value, np.dtype) and value.fields is None:
            return {_KIND_KEY: "dtype", "value": value.str}
        if is_number_type(value):
            return {_KIND_KEY: "type", "value": np.dtype(value).str}
        if type(value) in (list, tuple):
            items = [self.encode(one, f"{name}.{i}") for i, one in enumerate(value)]
            return items if type(value) is list else {_KIND_KEY: "tuple", "items": items}
        if type(value) is dict:
            return self._mapping(value, name)
        return self._object(value, name)

    def _mapping(self, value: dict[Any, Any], name: str) -> Any:
        """Return the JSON of a dict: a JSON object if all keys are texts, else pairs."""
        if all(type(key) is str for key in value) and _KIND_KEY not in value:
            return {key: self.encode(one, f"{name}.{key}") for key, one in value.items()}
        pairs = [
            [self.encode(key, f"{name}.{i}.key"), self.encode(one, f"{name}.{i}")]
            for i, (key, one) in enumerate(value.items())
        ]
        return {_KIND_KEY: "dict", "items": pairs}

    def _object(self, value: Any, name: str) -> Any:
        """Return the JSON of an object of this package: its class and attributes."""
        kind = type(value)
        ours = any(one.__module__.partition(".")[0] == _PACKAGE for one in kind.__mro__)
        state = value.__getstate__() if ours else None
        # Not supported: objects of other packages, with slots, or of a nested class.
        if not ours or not isinstance(state, dict | None) or "." in kind.__qualname__:
            raise _cannot_write(value, name)
        # Cached properties are computed again at their next use.
        kept = {
            n: v
            for n, v in (state or {}).items()
            if not isinstance(inspect.getattr_static(kind, n, None), cached_property)
        }
        return {
            _KIND_KEY: "object",
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "state": {n: self.encode(v, f"{name}.{n}") for n, v in kept.items()},
        }

    def _array(self, value: NDArray[Any], name: str) -> Any:
        """Return the JSON of an array, which is added to the tensors if it is not there yet."""
        if id(value) in self._names:
            return self._names[id(value)][0]
        found = self._add_array(value, name)
        self._names[id(value)] = found, value
        return found

    def _add_array(self, value: NDArray[Any], name: str) -> Any:
        """Add an array to the tensors by its kind; return its JSON."""
        encoded: dict[str, Any] = {_KIND_KEY: "array", "tensor": name, "dtype": value.dtype.str}
        # Numbers are stored unchanged, dates as integers, texts as UTF-8 with the end of each, and
        # arrays of other objects as lists.
        if value.dtype.kind in "biuf" and value.itemsize <= 8:
            if value.flags.f_contiguous and not value.flags.c_contiguous:
                encoded["order"] = "F"
            self._add(name, value.astype(value.dtype.newbyteorder("=")))
        elif value.dtype.kind in "mM":
            self._add(name, value.view(np.int64))
        elif value.dtype.kind == "U" or all(type(one) is str for one in value.flat):
            texts = [str(one).encode("utf-8", _SURROGATES) for one in value.flat]
            encoded |= {_KIND_KEY: "texts", "shape": list(value.shape)}
            self._add(f"{name}.utf8", np.frombuffer(b"".join(texts), np.uint8))
            self._add(f"{name}.ends", np.cumsum([len(one) for one in texts], dtype=np.int64))
        elif value.dtype.kind == "O":
            items = [self.encode(one, f"{name}.{i}") for i, one in enumerate(value.flat)]
            return {_KIND_KEY: "objects", "shape": list(value.shape), "items": items}
        else:
            raise _cannot_write(value, name)
        return encoded

    def _add(self, name: str, value: NDArray[Any]) -> None:
        """Add a tensor; two paths may give one name, since keys of dicts may contain dots."""
        if name in self.tensors:
            raise ModelFileError(f"Two arrays have the name {name}. Save the model as .skops.")
        self.tensors[name] = np.ascontiguousarray(value).reshape(value.shape)


def is_number_type(value: Any) -> bool:
    """Return whether a value is a class of NumPy's scalars, such as a parameter `dtype`."""
    if not (isinstance(value, type) and issubclass(value, np.generic)):
        return False
    # Not object, whose values have any type, nor abstract classes such as np.floating.
    return value is not np.object_ and np.dtype(value).type is value


def list_classes(encoded: Any) -> set[str]:
    """Return the names of the classes of all objects in encoded JSON."""
    if isinstance(encoded, list):
        return set().union(*map(list_classes, encoded))
    if not isinstance(encoded, dict):
        return set()
    own = {encoded["class"]} if encoded.get(_KIND_KEY) == "object" else set()
    return own.union(*map(list_classes, encoded.values()))


def _cannot_write(value: Any, name: str) -> ModelFileError:
    """Return the error for a value that has no form here."""
    return ModelFileError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which .safetensors "
        "cannot store. Create the estimator without it, or save it as .skops."
    )


class Reader:
    """Decoder of JSON and named arrays to objects of trusted classes, with their attributes set.

    Parameters
    ----------
    tensors : mapping of str to ndarray
    trusted : collection of str
        Names of classes that may be made besides those known to hold data only.
    name : str
        Name of the file, for errors.
    """

    def __init__(
        self, tensors: Mapping[str, NDArray[Any]], trusted: Collection[str], name: str
    ) -> None:
        self._tensors, self._trusted, self._name = tensors, trusted, name
        # Arrays that have been made, by name: attributes that shared one share it again.
        self._arrays: dict[str, NDArray[Any]] = {}
        self._decoders: dict[str, Callable[[dict[str, Any]], Any]] = {
            "float": lambda encoded: _FLOATS[encoded["value"]],
            "scalar": lambda encoded: self._array(encoded["value"])[()],
            "dtype": lambda encoded: np.dtype(encoded["value"]),
            "type": lambda encoded: np.dtype(encoded["value"]).type,
            "tuple": lambda encoded: tuple(map(self.decode, encoded["items"])),
            "dict": lambda encoded: {
                self.decode(key): self.decode(one) for key, one in encoded["items"]
            },
            "array": self._array,
            "texts": self._array,
            "objects": self._objects,
            "object": self._object,
        }

    def decode(self, encoded: Any) -> Any:
        """Return the value of encoded JSON."""
        if isinstance(encoded, list):
            return [self.decode(one) for one in encoded]
        if not isinstance(encoded, dict):
            return encoded
        if _KIND_KEY not in encoded:
            return {name: self.decode(one) for name, one in encoded.items()}
        return self._decoders[encoded[_KIND_KEY]](encoded)

    def _array(self, encoded: dict[str, Any]) -> NDArray[Any]:
        """Return an array, which is made at its first use."""
        name = encoded["tensor"]
        if name not in self._arrays:
            self._arrays[name] = self._make_array(name, encoded)
        return self._arrays[name]

    def _make_array(self, name: str, encoded: dict[str, Any]) -> NDArray[Any]:
        """Return a new array from its tensors; raise if its JSON does not fit them."""
        dtype = np.dtype(encoded["dtype"])
        if encoded[_KIND_KEY] == "texts":
            data, ends = self._tensors[f"{name}.utf8"].tobytes(), self._tensors[f"{name}.ends"]
            # Text i is data[starts[i]:starts[i + 1]].
            starts = [0, *ends.tolist()]
            # Texts that overlap, or a dtype far wider than the texts, could fill the memory.
            if starts != sorted(starts) or starts[-1] != len(data):
                raise ValueError(f"{name}.ends, which are not those of texts")
            if dtype.itemsize * len(ends) > _MIN_TEXT_BYTES + _MAX_TEXT_EXPANSION * (
                len(data) + ends.nbytes
            ):
                raise ValueError(f"{name}, whose {dtype} is far wider than its texts")
            texts = [data[a:b].decode("utf-8", _SURROGATES) for a, b in pairwise(starts)]
            return np.array(texts, dtype).reshape(encoded["shape"])
        if dtype.kind not in "biufmM" or dtype.itemsize > 8:
            raise ValueError(f"{name} as {dtype}, which no array of a file is")
        found = self._tensors[name]
        found = found.view(dtype) if dtype.kind in "mM" else found.astype(dtype)
        # A writable copy, in the memory order of the fit, which affects how BLAS rounds products.
        return np.array(found, order=encoded.get("order", "C"))

    def _objects(self, encoded: dict[str, Any]) -> NDArray[Any]:
        """Return an array of objects; assigned, since NumPy would unpack lists among them."""
        found: NDArray[Any] = np.empty(len(encoded["items"]), object)
        found[:] = [self.decode(one) for one in encoded["items"]]
        return found.reshape(encoded["shape"])

    def _object(self, encoded: dict[str, Any]) -> Any:
        """Return an object with its attributes set, without running code of its class."""
        found: Any = object.__new__(self._class(encoded["class"]))
        vars(found).update({name: self.decode(one) for name, one in encoded["state"].items()})
        return found

    def _class(self, name: str) -> type:
        """Return a trusted class; raise if it is not trusted, or the name is not a class."""
        # The name in a module may be another object, or a class imported from elsewhere.
        check_trusted([name], self._trusted, self._name)
        module, _, short = name.rpartition(".")
        kind = getattr(import_module(module), short, None)
        if not inspect.isclass(kind) or (kind.__module__, kind.__name__) != (module, short):
            raise ImportError(f"{name}, which is no class here")
        return kind
