"""Archives: zip files whose manifest tells the checksum of each other member."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

from daskml_dist.errors import ModelFileError
from daskml_dist.inference.saved.manifest import FORMAT

__all__ = ["MANIFEST", "REMEDY", "check_sums", "pack", "sum_of", "unpack"]

#: Name of the manifest in the archive.
MANIFEST = "daskml_dist/manifest.json"


def pack(whole: bytes, more: Mapping[str, bytes], manifest: Mapping[str, Any]) -> bytes:
    """Add members and the manifest to an archive.

    Parameters
    ----------
    whole : bytes
        A zip file.
    more : mapping of str to bytes
        Members to add.
    manifest : mapping
        Of what JSON holds; the checksums are added.

    Returns
    -------
    bytes
    """
    buffer = io.BytesIO(whole)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        sums = {name: sum_of(archive.read(name)) for name in archive.namelist()}
        for name, data in more.items():
            archive.writestr(name, data)
            sums[name] = sum_of(data)
        told = {**manifest, "sha256": sums}
        archive.writestr(MANIFEST, json.dumps(told, indent=2, allow_nan=False))
    return buffer.getvalue()


def unpack(data: bytes, name: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read an archive, each member checked against its checksum.

    Parameters
    ----------
    data : bytes
    name : str
        Of the file, for errors.

    Returns
    -------
    dict
        The manifest.
    dict of str to bytes
        The other members.

    Raises
    ------
    ModelFileError
        It is none, damaged, or of a later version of this package.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if MANIFEST not in archive.namelist():
                raise ModelFileError(
                    f"{name} has no {MANIFEST}: it is damaged, or was not written by save(). "
                    "Files of skops alone are read by skops.io.load."
                )
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                # Else a small file could fill the memory.
                raise ModelFileError(f"{name} has compressed members, which save() writes none of.")
            manifest = json.loads(archive.read(MANIFEST))
            members = {n: archive.read(n) for n in archive.namelist() if n != MANIFEST}
    except ModelFileError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
        raise ModelFileError(
            f"{name} is damaged, or no model file ({type(error).__name__}: {error}). {REMEDY}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{name} has a manifest that is no JSON ({error}). {REMEDY}"
        ) from error
    check_sums(manifest, {n: sum_of(data) for n, data in members.items()}, name)
    return manifest, members


#: What to do about a file that is damaged.
REMEDY = "Save the model again, or restore the file from a copy."


def sum_of(data: bytes) -> str:
    """Checksum of some bytes."""
    return hashlib.sha256(data).hexdigest()


def check_sums(manifest: Any, found: Mapping[str, str], name: str) -> None:
    """Check a manifest, and checksums of the parts of its file against those that it tells.

    Parameters
    ----------
    manifest : object
        Of JSON.
    found : mapping of str to str
        By the names of the parts.
    name : str
        Of the file, for errors.

    Raises
    ------
    ModelFileError
    """
    sums = manifest.get("sha256") if isinstance(manifest, dict) else None
    if not isinstance(sums, dict) or not isinstance(manifest.get("format"), int):
        raise ModelFileError(f"{name} has a manifest without checksums or format. {REMEDY}")
    if manifest["format"] > FORMAT:
        raise ModelFileError(
            f"{name} has the format {manifest['format']}, and this version of daskml_dist reads "
            f"up to {FORMAT}. Install a newer daskml_dist."
        )
    if wrong := sorted({part for part, one in found.items() if sums.get(part) != one}):
        raise ModelFileError(f"{name} is damaged: {wrong[0]} has another checksum. {REMEDY}")
    if missing := sorted(set(sums) - set(found)):
        raise ModelFileError(f"{name} is damaged: {missing[0]} is missing. {REMEDY}")
