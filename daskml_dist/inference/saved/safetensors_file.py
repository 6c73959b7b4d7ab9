"""Model files in the safetensors format.

Arrays become tensors named after the estimator's attributes. The metadata of the file holds two
JSON texts: the manifest (class, versions, checksums) and the state (all attributes that are not
arrays, and the place of each array). Classes and functions are not saved: the caller of `read`
passes them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

from numpy.typing import NDArray

from daskml_dist.errors import ModelFileError
from daskml_dist.inference.export.sklearn_models import check_exportable
from daskml_dist.inference.saved.archive import REMEDY, check_checksums, compute_checksum
from daskml_dist.inference.saved.manifest import (
    explain_old_versions,
    find_replacements,
    make_manifest,
    warn_of_versions,
)
from daskml_dist.inference.saved.objects import (
    Reader,
    Writer,
    find_untrusted,
    is_number_type,
    list_classes,
)

SUFFIX = ".safetensors"
#: Position in the list of model formats: tried, and named in errors, after .skops (0).
RANK = 1
#: Keys of the file's metadata; the values are JSON texts.
_MANIFEST, _STATE = "daskml_dist.manifest", "daskml_dist.state"
#: Prefix of the attributes' tensors in a file that also holds a torch module's own tensors, whose
#: names (a state_dict's keys) could be the same.
_STATE_PREFIX = "daskml_dist."


def write(estimator: Any) -> bytes:
    """Return a fitted estimator serialized as a safetensors file."""
    check_exportable(estimator)
    manifest = make_manifest(estimator)
    if _find_public_class(manifest["estimator"]) is not type(estimator):
        raise ModelFileError(
            f"{type(estimator).__name__} is not a public estimator of daskml_dist; only those "
            "can be saved as .safetensors. Save it as .skops."
        )
    writer = Writer(find_replacements(estimator))
    # A copy: attributes that a file does not hold are removed from it, not from the estimator.
    state: dict[str, Any] = {**estimator.__getstate__()}  # type: ignore[dict-item]
    # A torch module's parameters and buffers go into the file under their own names.
    module_tensors = estimator._take_tensors(state) if hasattr(estimator, "_take_tensors") else {}
    left_out = _pop_code_params(estimator, state)
    prefix = _STATE_PREFIX if module_tensors else ""
    # Public attributes go first: an array that two attributes share is saved under the first name.
    names = sorted(state, key=lambda name: name.startswith("_"))
    encoded = {name: writer.encode(state[name], f"{prefix}{name}") for name in names}
    if clash := set(module_tensors) & set(writer.tensors):
        raise ModelFileError(f"The module's tensor {min(clash)} has a reserved name.")
    tensors = writer.tensors | module_tensors
    state_json = json.dumps(
        {"state": encoded, "left_out": left_out, "module": [*module_tensors]}, allow_nan=False
    )
    return pack_parts(manifest, state_json, tensors)


def pack_parts(
    manifest: dict[str, Any], state_json: str, tensors: Mapping[str, NDArray[Any]]
) -> bytes:
    """Return the bytes of a file: tensors, and a manifest with their checksums."""
    library = _load_safetensors()
    manifest["sha256"] = _compute_checksums(tensors, state_json)
    metadata = {_MANIFEST: json.dumps(manifest, allow_nan=False), _STATE: state_json}
    try:
        data: bytes = library.save(tensors, metadata)
    except Exception as error:  # safetensors has error classes of its own
        raise ModelFileError(
            f"safetensors cannot write this {manifest['estimator']} ({error}). Save it as .skops."
        ) from error
    return data


def read(data: bytes, name: str, trusted: Collection[str] = (), **user_params: Any) -> Any:
    """Return the estimator that a file holds, with `user_params` as its classes and functions."""
    manifest, state_json, tensors = read_parts(data, name)
    warn_of_versions(manifest, name)
    with explain_old_versions(manifest, name):
        payload = json.loads(state_json)
        estimator_class = _find_public_class(manifest["estimator"])
        if estimator_class is None:
            raise ModelFileError(
                f"{name} is of {manifest['estimator']}, which is not a public estimator of this "
                "daskml_dist. Install the version that wrote it."
            )
        # Parameters that are code come from the caller, all others from the file.
        _check_given(payload["left_out"], user_params, name)
        state = Reader(tensors, trusted, name).decode(payload["state"])
        # The state is that of a checked, fitted estimator: `__init__` is not called.
        estimator: Any = object.__new__(estimator_class)
        vars(estimator).update(state | user_params)
        if payload["module"]:
            estimator._set_tensors({key: tensors[key] for key in payload["module"]})
    return estimator


def read_manifest(data: bytes, name: str) -> dict[str, Any]:
    """Return the manifest of a file, after its checksums were verified."""
    return read_parts(data, name)[0]


def code_of(estimator: Any) -> dict[str, Any]:
    """Return the classes and functions among the parameters, which `read` needs as arguments."""
    params = estimator.get_params(deep=False)
    return {name: value for name, value in sorted(params.items()) if _is_code(value)}


def types_asked(data: bytes) -> list[str]:
    """Return the names of the types in a file that `read` refuses unless they are trusted."""
    return find_untrusted(list_classes(json.loads(read_parts(data, "the file")[1])["state"]))


def _pop_code_params(estimator: Any, state: dict[str, Any]) -> list[str]:
    """Remove the parameters that are classes or functions from a state; return their names."""
    names = [n for n in estimator.get_params(deep=False) if _is_code(state.get(n))]
    for name in names:
        del state[name]
    return sorted(names)


def _is_code(value: Any) -> bool:
    """Return whether a value is a class or function, which no model file holds."""
    if not callable(value) or is_number_type(value):
        return False
    # Losses and optimizers of the package are callable objects, and are saved by their attributes.
    bases = type(value).__mro__
    return not any(base.__module__.startswith("daskml_dist.") for base in bases)


def _check_given(left_out: list[str], user_params: Mapping[str, Any], name: str) -> None:
    """Raise unless exactly the parameters that were left out of the file are given."""
    if missing := [param for param in left_out if param not in user_params]:
        arguments = ", ".join(f"{param}=..." for param in missing)
        raise ModelFileError(
            f"{name} does not contain classes and functions. Pass those of the fit: "
            f"load({name!r}, {arguments})."
        )
    if unexpected := sorted(set(user_params) - set(left_out)):
        raise ModelFileError(
            f"{name} holds {unexpected[0]} itself, or has no such parameter. Leave it out."
        )


def _find_public_class(name: str) -> type | None:
    """Return the estimator class named ``daskml_dist.<subpackage>.<Name>``, or None."""
    from sklearn.base import BaseEstimator

    package, _, rest = name.partition(".")
    # Only a public name of a public subpackage is imported: the name is read from a file.
    subpackage, _, class_name = rest.partition(".")
    if package != "daskml_dist" or not subpackage.isidentifier() or subpackage.startswith("_"):
        return None
    try:
        module = import_module(f"{package}.{subpackage}")
    except ImportError:
        return None
    if class_name not in getattr(module, "__all__", ()):
        return None
    found = getattr(module, class_name, None)
    return found if isinstance(found, type) and issubclass(found, BaseEstimator) else None


def _compute_checksums(tensors: Mapping[str, NDArray[Any]], state_json: str) -> dict[str, str]:
    """Return the checksum of each tensor (dtype, shape and bytes), and of the state's JSON text."""
    # Also of dtype and shape, since the same bytes may be another array.
    checksums = {
        f"tensor {name}": compute_checksum(
            f"{array.dtype.str}{list(array.shape)}".encode() + array.tobytes()
        )
        for name, array in tensors.items()
    }
    return {**checksums, "state": compute_checksum(state_json.encode())}


def read_parts(data: bytes, name: str) -> tuple[dict[str, Any], str, dict[str, NDArray[Any]]]:
    """Return the manifest, the state's JSON text and the tensors of a file; verify checksums."""
    library = _load_safetensors()
    try:
        tensors: dict[str, NDArray[Any]] = library.load(data)
        # A file begins with the length of its JSON header in 8 bytes; `load` drops the metadata.
        header_bytes = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + header_bytes]).get("__metadata__") or {}
    except Exception as error:  # of safetensors' classes, or KeyError (dtype)
        raise ModelFileError(
            f"{name} is damaged, or not a model file ({type(error).__name__}: {error}). {REMEDY}"
        ) from error
    if _MANIFEST not in metadata or _STATE not in metadata:
        raise ModelFileError(
            f"{name} has no {_MANIFEST}: it was not written by save(). Plain tensor files are "
            "loaded with safetensors.numpy.load_file."
        )
    try:
        manifest = json.loads(metadata[_MANIFEST])
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{name} has a manifest that is not JSON ({error}). {REMEDY}"
        ) from error
    check_checksums(manifest, _compute_checksums(tensors, metadata[_STATE]), name)
    return manifest, metadata[_STATE], tensors


def _load_safetensors() -> Any:
    """Return the module `safetensors.numpy`; raise with a remedy if it is not installed."""
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ModelFileError(
            'Files of tensors need safetensors: pip install "daskml-dist[export]".'
        ) from error
    return safetensors.numpy
