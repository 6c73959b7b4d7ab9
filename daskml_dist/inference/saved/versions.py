"""Versions of the packages that wrote a model file, beside those that are here."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from daskml_dist.errors import ModelFileError
from daskml_dist.errors.stack_level import user_stack_level
from daskml_dist.inference.saved.manifest import versions_here

__all__ = ["reading", "warn_of_versions"]

#: Packages of which another minor release may answer otherwise.
_MATTER = ("daskml-dist", "scikit-learn")


@contextmanager
def reading(manifest: Mapping[str, Any], name: str) -> Iterator[None]:
    """Reading of a file whose parts are whole: what fails is of other versions, which are told."""
    try:
        yield
    except ModelFileError:
        raise
    except Exception as error:  # of many kinds: a class that has moved, attributes
        told = ", ".join(f"{one} {number}" for one, number in manifest["versions"].items())
        raise ModelFileError(
            f"{name} cannot be read ({type(error).__name__}: {error}). It was written with {told}; "
            "install these, or save the model again."
        ) from error


def warn_of_versions(manifest: Mapping[str, Any], name: str) -> None:
    """Warn where another minor release of this package or scikit-learn wrote a file."""
    here, there = versions_here(), manifest.get("versions", {})
    others = [
        f"{one} {there[one]} (here {here.get(one)})"
        for one in _MATTER
        if one in there and _minor(there[one]) != _minor(here.get(one, ""))
    ]
    if others:
        warnings.warn(
            f"{name} was written with {' and '.join(others)}. Its answers may be others: compare "
            "some, and save the model again from here, or install those versions.",
            UserWarning,
            stacklevel=user_stack_level(),
        )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
