"""Files of safetensors: arrays by the names of the attributes, and JSON for all else."""

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

__all__ = ["RANK", "SUFFIX", "code_of", "read", "read_manifest", "types_asked", "write"]

SUFFIX = ".safetensors"
#: Of the formats, the one that is tried and named second.
RANK = 1
#: Keys of the file's metadata, of JSON.
_MANIFEST, _STATE = "daskml_dist.manifest", "daskml_dist.state"
#: Before names of attributes, where those of a module's own tensors are beside them.
_APART = "daskml_dist."


def write(estimator: Any) -> bytes:
    """Return the file of a fitted estimator, as bytes."""
    library = _load_safetensors()
    check_exportable(estimator)
    manifest = make_manifest(estimator)
    if _public_class(manifest["estimator"]) is not type(estimator):
        raise ModelFileError(
            f"{type(estimator).__name__} is no public estimator of daskml_dist, which alone become "
            ".safetensors. Save it as .skops."
        )
    writer = Writer(find_replacements(estimator))
    state: dict[str, Any] = {**estimator.__getstate__()}  # type: ignore[dict-item]
    own = estimator._take_tensors(state) if hasattr(estimator, "_take_tensors") else {}
    left_out = _find_left_out(estimator, state)
    prefix = _APART if own else ""
    # Names of public attributes come first, where another one is the same array.
    names = sorted(state, key=lambda name: name.startswith("_"))
    told = {name: writer.of(state[name], f"{prefix}{name}") for name in names}
    if clash := set(own) & set(writer.tensors):
        raise ModelFileError(f"The module's tensor {min(clash)} has a name that is taken.")
    tensors = writer.tensors | own
    text = json.dumps({"state": told, "left_out": left_out, "module": [*own]}, allow_nan=False)
    manifest["sha256"] = _compute_checksums(tensors, text)
    metadata = {_MANIFEST: json.dumps(manifest, allow_nan=False), _STATE: text}
    try:
        data: bytes = library.save(tensors, metadata)
    except Exception as error:  # of its own kinds
        raise ModelFileError(
            f"safetensors cannot write this {type(estimator).__name__} ({error}). Save it as "
            ".skops."
        ) from error
    return data


def read(data: bytes, name: str, trusted: Collection[str] = (), **given: Any) -> Any:
    """Return the estimator of a file."""
    manifest, text, tensors = _read_parts(data, name)
    warn_of_versions(manifest, name)
    with explain_old_versions(manifest, name):
        told = json.loads(text)
        kind = _public_class(manifest["estimator"])
        if kind is None:
            raise ModelFileError(
                f"{name} is of {manifest['estimator']}, which is no public estimator of "
                "daskml_dist. Install the version that wrote it."
            )
        _check_given(told["left_out"], given, name)
        state = Reader(tensors, trusted, name).of(told["state"])
        found: Any = object.__new__(kind)
        vars(found).update(state | given)
        if told["module"]:
            found._set_tensors({one: tensors[one] for one in told["module"]})
    return found


def read_manifest(data: bytes, name: str) -> dict[str, Any]:
    """Return the manifest of a file, whose parts are checked."""
    return _read_parts(data, name)[0]


def code_of(estimator: Any) -> dict[str, Any]:
    """Return parameters that a file does not hold and `read` needs: classes and functions."""
    told = estimator.get_params(deep=False)
    return {name: one for name, one in sorted(told.items()) if _is_code(one)}


def types_asked(data: bytes) -> list[str]:
    """Return the types that `read` takes only where they are trusted."""
    return find_untrusted(list_classes(json.loads(_read_parts(data, "the file")[1])["state"]))


def _find_left_out(estimator: Any, state: dict[str, Any]) -> list[str]:
    """Take classes and functions among the parameters out of a state; their names."""
    names = [n for n in estimator.get_params(deep=False) if _is_code(state.get(n))]
    for name in names:
        del state[name]
    return sorted(names)


def _is_code(value: Any) -> bool:
    if not callable(value) or is_number_type(value):
        return False
    ours = type(value).__mro__  # losses and optimizers are objects that may be called
    return not any(one.__module__.startswith("daskml_dist.") for one in ours)


def _check_given(left_out: list[str], given: Mapping[str, Any], name: str) -> None:
    if missing := [one for one in left_out if one not in given]:
        words = ", ".join(f"{one}=..." for one in missing)
        raise ModelFileError(
            f"{name} holds no classes and functions. Give those of the fit: load({name!r}, "
            f"{words})."
        )
    if odd := sorted(set(given) - set(left_out)):
        raise ModelFileError(
            f"{name} holds {odd[0]} itself, or has no such parameter. Leave it out."
        )


def _public_class(name: str) -> type | None:
    """Return a public estimator of the package; None where there is none of that name."""
    from sklearn.base import BaseEstimator

    package, _, rest = name.partition(".")
    room, _, short = rest.partition(".")
    if package != "daskml_dist" or not room.isidentifier() or room.startswith("_"):
        return None
    try:
        module = import_module(f"{package}.{room}")
    except ImportError:
        return None
    found = getattr(module, short, None) if short in getattr(module, "__all__", ()) else None
    return found if isinstance(found, type) and issubclass(found, BaseEstimator) else None


def _compute_checksums(tensors: Mapping[str, NDArray[Any]], text: str) -> dict[str, str]:
    """Return a checksum of each tensor with its dtype and shape, and of the rest."""
    found = {
        f"tensor {name}": compute_checksum(
            f"{one.dtype.str}{list(one.shape)}".encode() + one.tobytes()
        )
        for name, one in tensors.items()
    }
    return {**found, "state": compute_checksum(text.encode())}


def _read_parts(data: bytes, name: str) -> tuple[dict[str, Any], str, dict[str, NDArray[Any]]]:
    """Return manifest, JSON and tensors of a file, checked."""
    library = _load_safetensors()
    try:
        tensors: dict[str, NDArray[Any]] = library.load(data)
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__") or {}
    except Exception as error:  # of its own kinds, among them KeyError for dtypes
        raise ModelFileError(
            f"{name} is damaged, or no model file ({type(error).__name__}: {error}). {REMEDY}"
        ) from error
    if _MANIFEST not in metadata or _STATE not in metadata:
        raise ModelFileError(
            f"{name} has no {_MANIFEST}: it was not written by save(). Tensors alone are read by "
            "safetensors.numpy.load_file."
        )
    try:
        manifest = json.loads(metadata[_MANIFEST])
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{name} has a manifest that is no JSON ({error}). {REMEDY}"
        ) from error
    check_checksums(manifest, _compute_checksums(tensors, metadata[_STATE]), name)
    return manifest, metadata[_STATE], tensors


def _load_safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ModelFileError(
            'Files of tensors need safetensors: pip install "daskml-dist[export]".'
        ) from error
    return safetensors.numpy
