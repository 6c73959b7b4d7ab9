"""Model files in the format of skops.

If scikit-learn has an equal estimator (the twin, `to_sklearn`), the file is that of the twin, which
plain ``skops.io.load`` can read, with the estimator itself as an archive within it. Large arrays
that both have are stored only in the twin's part, and are put back into the inner archive when the
file is read. Without a twin the file is the estimator's own. The manifest is an additional member.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection
from typing import Any

from daskml_dist.errors import ExportError, ModelFileError
from daskml_dist.inference.export.sklearn_models import to_sklearn
from daskml_dist.inference.saved.archive import (
    REMEDY,
    check_references,
    pack,
    put_back_arrays,
    take_out_arrays,
    unpack,
)
from daskml_dist.inference.saved.manifest import (
    explain_old_versions,
    find_replacements,
    make_manifest,
    warn_of_versions,
)
from daskml_dist.inference.saved.objects import check_findable, check_trusted, find_untrusted

SUFFIX = ".skops"
#: Position in the list of model formats: tried, and named in errors, first.
RANK = 0
#: Member that holds the estimator if the file is its twin's.
_INNER = "daskml_dist/estimator.skops"


def write(estimator: Any) -> bytes:
    """Return a fitted estimator serialized as a file of skops."""
    sio = _load_skops()
    own = _dump_with_skops(sio, estimator)
    # Errors of reading are found now, while the estimator can still be saved in another way.
    types = sio.get_untrusted_types(data=own)
    check_findable(types, type(estimator).__name__)
    if others := find_untrusted(types):
        _check_readable(sio, own, types, others, type(estimator).__name__)
    try:
        twin = sio.dumps(to_sklearn(estimator))
    except ExportError:
        twin = None
    manifest = {**make_manifest(estimator), "twin": twin is not None}
    if twin is None:
        return pack(own, {}, manifest)
    own, same = take_out_arrays(own, twin)
    # Readers of format 1 do not support shared arrays, and refuse format 2.
    if same:
        manifest |= {"format": 2, "shared": same}
    return pack(twin, {_INNER: own}, manifest)


def read(data: bytes, name: str, trusted: Collection[str] = (), **user_params: Any) -> Any:
    """Return the estimator of a file; refuse `user_params`, as the file holds all parameters."""
    from sklearn.exceptions import InconsistentVersionWarning

    sio = _load_skops()
    if user_params:
        raise ModelFileError(
            f"{name} holds {min(user_params)} itself, as all parameters. Leave it out."
        )
    manifest, members = unpack(data, name)
    warn_of_versions(manifest, name)
    own = _find_own_archive(manifest, members, data, name)
    # The order matters: limits before skops visits the parts, types before it makes any.
    with explain_old_versions(manifest, name):
        check_references(own, name)
        types = check_trusted(sio.get_untrusted_types(data=own), trusted, name)
        with warnings.catch_warnings():
            # The warnings of each part are replaced by one for the file.
            warnings.simplefilter("ignore", InconsistentVersionWarning)
            found = sio.loads(own, types)
    # The manifest may belong to another file: its checksums do not include itself.
    stated = manifest.get("estimator")
    if str(stated).rpartition(".")[2] != type(found).__name__:
        raise ModelFileError(
            f"{name} is damaged: it declares a {stated}, but contains a {type(found).__name__}. "
            f"{REMEDY}"
        )
    return found


def read_manifest(data: bytes, name: str) -> dict[str, Any]:
    """Return the manifest of a file, after its checksums were verified."""
    return unpack(data, name)[0]


def code_of(estimator: Any) -> dict[str, Any]:
    """Return the parameters that `read` needs as arguments: none."""
    return {}


def types_asked(data: bytes) -> list[str]:
    """Return the names of the types in a file that `read` refuses unless they are trusted."""
    own = _find_own_archive(*unpack(data, "the file"), data, "the file")
    return find_untrusted(_load_skops().get_untrusted_types(data=own))


def _find_own_archive(
    manifest: dict[str, Any], members: dict[str, bytes], data: bytes, name: str
) -> bytes:
    """Return the estimator's own archive: the one within the twin's file, or the file itself."""
    if not manifest.get("twin") or _INNER not in members:
        return data
    return put_back_arrays(members[_INNER], manifest.get("shared", {}), members, name)


def _dump_with_skops(sio: Any, estimator: Any) -> bytes:
    """Return an estimator in skops' format, without the parts that files leave out."""
    # deepcopy's memo maps the `id` of a part to its copy: `find_replacements` returns such a
    # mapping.
    try:
        data: bytes = sio.dumps(copy.deepcopy(estimator, find_replacements(estimator)))
    except Exception as error:  # of many kinds, among them TypeError and UnsupportedTypeException
        raise ModelFileError(
            f"This {type(estimator).__name__} holds objects that skops cannot store "
            f"({type(error).__name__}: {error}). Create it without your own functions and "
            "objects, save a network as .safetensors, or pickle it."
        ) from error
    return data


def _check_readable(
    sio: Any, data: bytes, types: list[str], foreign_types: list[str], name: str
) -> None:
    """Raise if objects of other packages' classes were written, but cannot be read again."""
    try:
        sio.loads(data, types)
    except Exception as error:  # of whatever their classes raise
        raise ModelFileError(
            f"This {name} is made of {', '.join(foreign_types)}, which skops writes but cannot "
            f"read ({type(error).__name__}: {error}). Create it without these, or pickle it."
        ) from error


def _load_skops() -> Any:
    """Return the module `skops.io`; raise with a remedy if it is not installed."""
    try:
        import skops.io
    except ImportError as error:
        raise ModelFileError(
            'Model files need skops: pip install "daskml-dist[export]".'
        ) from error
    return skops.io
