"""Model files that hold only the rows of a table that have changed since another file.

They are for models over ids only. The tensors are the changed rows with their ids, and the ids
whose rows were removed; the state holds the path of the other file, relative to this one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from daskml_dist.errors import ModelFileError
from daskml_dist.inference.saved import safetensors_file
from daskml_dist.inference.saved.archive import REMEDY, compute_checksum
from daskml_dist.inference.saved.manifest import make_manifest, warn_of_versions
from daskml_dist.inference.saved.storage import read_bytes

SUFFIX = ".changes"
#: Position in the list of model formats: this format is written only if its publisher requests it.
RANK = 2
#: Allowed path of the base file: in the folder of another version of the same model.
_BASE = re.compile(r"\.\./([0-9]+)/model\.(skops|safetensors)")


code_of = safetensors_file.code_of


def write(estimator: Any) -> bytes:
    """Raise: changes refer to another file, which only a publisher knows."""
    raise ModelFileError(
        f"A file that ends in {SUFFIX} holds changes relative to another file. Publish the model "
        "with daskml_dist.serving.Publisher(..., whole_every=...), or save it as .safetensors."
    )


def write_changes(estimator: Any, previous_model: Any, base: str, base_checksum: str) -> bytes:
    """Return the rows of a fitted model that an earlier one does not have, as a file.

    Parameters
    ----------
    estimator, previous_model : estimator
    base : str
        File of `previous_model`, relative to the folder of the new one.
    base_checksum : str
        Of that file's bytes.
    """
    state = json.dumps({"base": base, "sha256": base_checksum})
    return safetensors_file.pack_parts(
        make_manifest(estimator), state, estimator._rows_since(previous_model)
    )


def read(data: bytes, name: str, trusted: Collection[str] = (), **user_params: Any) -> Any:
    """Return the estimator of the other file, updated with the rows of this file."""
    from daskml_dist.inference.saved.model_file import load_formats

    manifest, state, tensors = safetensors_file.read_parts(data, name)
    warn_of_versions(manifest, name)
    found = json.loads(state)
    if not _BASE.fullmatch(found["base"]):
        raise ModelFileError(
            f"{name} names {found['base']!r}, which is not another version. {REMEDY}"
        )
    path = Path(name).parent / found["base"]
    base = read_bytes(str(path))
    if compute_checksum(base) != found["sha256"]:
        raise ModelFileError(f"{name} is of another {path} than the one there. {REMEDY}")
    model = load_formats()[path.suffix].read(base, str(path), trusted, **user_params)
    return model._with_rows(tensors)


def read_base_version(path: Path) -> str | None:
    """Return the version that a file's changes refer to; None for a file of another format."""
    if path.suffix != SUFFIX:
        return None
    found = _BASE.fullmatch(
        json.loads(safetensors_file.read_parts(path.read_bytes(), str(path))[1])["base"]
    )
    return None if found is None else found[1]


def read_manifest(data: bytes, name: str) -> dict[str, Any]:
    """Return the manifest of a file, after its checksums were verified."""
    return safetensors_file.read_parts(data, name)[0]


def types_asked(data: bytes) -> list[str]:
    """Return no names of types: a file holds only arrays."""
    return []
