"""Archives of model files: zip files whose manifest lists the checksum of each other member.

A file of skops is already a zip file; `pack` adds the manifest and, beside scikit-learn's twin, an
archive of the estimator itself. Checksums detect damage. A forged file can have correct checksums,
so limits are also checked, before any object is made: members are stored uncompressed, do not
overlap, and do not expand beyond bounds, and parts do not refer to each other so often that skops
would never finish.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from daskml_dist.errors import ModelFileError
from daskml_dist.inference.saved.manifest import FORMAT

#: Key of a part's number in the schema of skops.
_ID = "__id__"
#: Visits of parts that skops may make, counting each use: a number for any file, and one for each
#: part in the file.
_MIN_VISITS, _MAX_VISITS_PER_PART = 20_000, 50


def check_references(archive: bytes, name: str) -> None:
    """Raise if a file's parts refer to each other so often that skops would never finish.

    skops visits a part at each of its uses, before it makes any object. Forty nested lists, each of
    which holds the previous one twice, take about 10**12 visits.
    """
    with zipfile.ZipFile(io.BytesIO(archive)) as whole:
        schema = json.loads(whole.read("schema.json"))
    parts = list(_find_parts(schema))
    if _VisitCounter(parts).count_visits(schema) > _MIN_VISITS + _MAX_VISITS_PER_PART * len(parts):
        raise ModelFileError(
            f"{name} is damaged: its parts are nested more deeply than those of any estimator. "
            "Save the model again, or restore the file from a copy."
        )


def _find_parts(schema: Any) -> Iterable[dict[str, Any]]:
    """Yield the JSON objects at any depth, which are the parts of a schema of skops."""
    if isinstance(schema, dict):
        yield schema
        schema = schema.values()
    elif not isinstance(schema, list):
        return
    for one in schema:
        yield from _find_parts(one)


class _VisitCounter:
    """Counter of the visits of a part and of all parts it refers to, one for each use."""

    def __init__(self, parts: list[dict[str, Any]]) -> None:
        # Visits by the number of a part; -1 while they are being counted.
        self._visits: dict[Any, int] = {}
        self._of_id: dict[Any, list[dict[str, Any]]] = {}
        for part in parts:
            self._of_id.setdefault(_key(part), []).append(part)

    def count_visits(self, schema: Any) -> int:
        """Return the visits of a JSON value."""
        if isinstance(schema, list):
            return sum(map(self.count_visits, schema))
        if not isinstance(schema, dict):
            return 0
        key = _key(schema)
        if key is None:
            return 1 + self.count_visits([*schema.values()])
        if key not in self._visits:
            self._visits[key] = -1
            # Several parts may have this number, and which one is used depends on the reader: the
            # one with the most visits counts.
            self._visits[key] = max(
                1 + self.count_visits([*one.values()]) for one in self._of_id[key]
            )
        if self._visits[key] < 0:
            raise ValueError(f"part {key} holds itself")
        return self._visits[key]


def _key(part: dict[str, Any]) -> str | None:
    """Return the number of a part as text, since skops accepts any type; None without one."""
    number = part.get(_ID)
    return str(number) if number else None


#: Name of the manifest in the archive.
MANIFEST = "daskml_dist/manifest.json"
_ARRAY = ".npy"
#: Limits of the expansion of a compressed member: bytes that any may have, and additional bytes for
#: each compressed byte: sparse matrices are stored compressed, and those of few distinct values
#: shrink strongly.
_MIN_INFLATED_BYTES, _MAX_INFLATION = 2**26, 200
#: First bytes of a zip file, and of one without members.
_ZIP = b"PK\x03\x04", b"PK\x05\x06"
#: Exceptions that reading a damaged zip file raises.
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, OSError, RuntimeError,
    OverflowError, struct.error,
)  # fmt: skip


def pack(
    archive_bytes: bytes, extra_members: Mapping[str, bytes], manifest: Mapping[str, Any]
) -> bytes:
    """Return an archive with further members, and with the manifest and checksums of all."""
    buffer = io.BytesIO(archive_bytes)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        sums = {name: compute_checksum(archive.read(name)) for name in archive.namelist()}
        for name, data in extra_members.items():
            archive.writestr(name, data)
            sums[name] = compute_checksum(data)
        content = {**manifest, "sha256": sums}
        archive.writestr(MANIFEST, json.dumps(content, indent=2, allow_nan=False))
    return buffer.getvalue()


def unpack(data: bytes, name: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest and the other members of an archive, checked against its checksums."""
    members = _read_members(data, name)
    if MANIFEST not in members:
        raise ModelFileError(
            f"{name} has no {MANIFEST}: it is damaged, or was not written by save(). Plain skops "
            "files are loaded with skops.io.load."
        )
    try:
        manifest = json.loads(members.pop(MANIFEST))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{name} has a manifest that is not JSON ({error}). {REMEDY}"
        ) from error
    check_checksums(manifest, {n: compute_checksum(data) for n, data in members.items()}, name)
    return manifest, members


def take_out_arrays(inner: bytes, outer: bytes) -> tuple[bytes, dict[str, str]]:
    """Return an archive without the arrays that another archive also has, and their names.

    The mapping is from a member's name in `inner` to the equal member's name in `outer`. No member
    of `outer` replaces two, as `put_back_arrays` requires.
    """
    parts = _read_members(inner, "the estimator")
    in_outer = {
        compute_checksum(data): one for one, data in _read_members(outer, "its twin").items()
    }
    same = {
        n: in_outer.pop(found, "")
        for n, found in ((n, compute_checksum(d)) for n, d in parts.items())
    }
    same = {n: at for n, at in same.items() if at and n.endswith(_ARRAY)}
    if not same:
        return inner, {}
    return _write_archive({n: d for n, d in parts.items() if n not in same}), same


def put_back_arrays(
    inner: bytes, shared_members: Any, members: Mapping[str, bytes], name: str
) -> bytes:
    """Return an archive with the arrays that `take_out_arrays` took out, all of them checked."""
    parts = _read_members(inner, name)
    if not isinstance(shared_members, dict) or not {*map(str, shared_members.values())} <= {
        *members
    }:
        raise ModelFileError(f"{name} is damaged: arrays of its estimator are missing. {REMEDY}")
    # One array for many names could fill the memory from a small file.
    if len({*shared_members.values()}) < len(shared_members) or {*shared_members} & {*parts}:
        raise ModelFileError(f"{name} is damaged: it uses an array twice. {REMEDY}")
    return (
        _write_archive(parts | {n: members[at] for n, at in shared_members.items()})
        if shared_members
        else inner
    )


def _write_archive(members: Mapping[str, bytes]) -> bytes:
    """Return a zip file of members, stored uncompressed."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _read_members(data: bytes, name: str) -> dict[str, bytes]:
    """Return the members of a zip file, after checks that they need no more memory than it does."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            if any(one.compress_type != zipfile.ZIP_STORED for one in infos):
                raise ModelFileError(f"{name} has compressed members, which save() never writes.")
            if sum(one.file_size for one in infos) > len(data):
                raise ModelFileError(f"{name} is damaged: its members overlap. {REMEDY}")
            if len({one.filename for one in infos}) < len(infos):
                raise ModelFileError(f"{name} is damaged: two members have the same name. {REMEDY}")
            found = {one.filename: archive.read(one) for one in infos}
    except ModelFileError:
        raise
    except _DAMAGED as error:
        raise ModelFileError(
            f"{name} is damaged, or not a model file ({type(error).__name__}: {error}). {REMEDY}"
        ) from error
    # Members that are zip files themselves are recognized by these bytes, as by their readers.
    for part in found.values():
        if part.startswith(_ZIP):
            _check_inflated(part, name)
    return found


def _check_inflated(data: bytes, name: str) -> None:
    """Raise if compressed arrays, such as those of sparse matrices, would fill the memory."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(one.file_size for one in archive.infolist())
    except _DAMAGED as error:
        raise ModelFileError(f"{name} is damaged ({error}). {REMEDY}") from error
    if size > _MIN_INFLATED_BYTES + _MAX_INFLATION * len(data):
        raise ModelFileError(
            f"{name} holds {len(data)} bytes that would expand to {size}, which save() never "
            "writes."
        )


#: End of messages about a damaged file.
REMEDY = "Save the model again, or restore the file from a copy."


def compute_checksum(data: bytes) -> str:
    """Return the checksum of some bytes: SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def check_checksums(manifest: Any, checksums: Mapping[str, str], name: str) -> None:
    """Raise if a manifest is incomplete, of a later format, or has other `checksums`.

    `checksums` holds the checksums of the file's parts by name: all of them, and no others.
    """
    sums = manifest.get("sha256") if isinstance(manifest, dict) else None
    if not isinstance(sums, dict) or not isinstance(manifest.get("format"), int):
        raise ModelFileError(f"{name} has a manifest without checksums or format. {REMEDY}")
    versions = manifest.get("versions")
    if not isinstance(versions, dict) or not all(isinstance(one, str) for one in versions.values()):
        raise ModelFileError(f"{name} has a manifest without versions. {REMEDY}")
    if manifest["format"] > FORMAT:
        raise ModelFileError(
            f"{name} has the format {manifest['format']}, and this version of daskml_dist reads "
            f"up to {FORMAT}. Install a newer daskml_dist."
        )
    if wrong := sorted({part for part, one in checksums.items() if sums.get(part) != one}):
        raise ModelFileError(f"{name} is damaged: {wrong[0]} has a wrong checksum. {REMEDY}")
    if missing := sorted(set(sums) - set(checksums)):
        raise ModelFileError(f"{name} is damaged: {missing[0]} is missing. {REMEDY}")
