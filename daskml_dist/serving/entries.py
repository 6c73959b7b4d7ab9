"""Entries: what is served of one model, and what tells that it has changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daskml_dist.errors import InvalidTypeError, ModelFileError
from daskml_dist.inference.predictor import Predictor
from daskml_dist.serving import registry

__all__ = ["Entry", "Route", "Served", "alone", "look", "path_of", "shared", "state_of", "warm"]


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """A version of a model, in memory.

    Examples
    --------
    >>> import numpy as np
    >>> from daskml_dist.inference import Predictor
    >>> from daskml_dist.naive_bayes import GaussianNB
    >>> from daskml_dist.serving import Served
    >>> model = GaussianNB().fit(np.array([[0.0], [1.0]]), ["no", "yes"])
    >>> served = Served("income", "3", Predictor(model, "predict"), {})
    >>> served.predictor(np.array([[0.9]])).tolist()
    ['yes']
    """

    name: str
    version: str
    predictor: Predictor
    manifest: Mapping[str, Any]


class Route(NamedTuple):
    """The version that answers a request, and those that see the same rows.

    Examples
    --------
    >>> from daskml_dist.serving import Route, Served
    >>> third, fourth = (Served("income", version, None, {}) for version in "34")
    >>> route = Route(served=third, shadows=(fourth,))
    >>> route.served.version, [one.version for one in route.shadows]
    ('3', ['4'])
    """

    served: Served
    shadows: tuple[Served, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """All that is served of one name; never changed, only replaced."""

    signature: Any
    current: Served
    loaded: Mapping[str, Served]
    ends: tuple[float, ...]  # of the shares, as parts of 1
    routes: tuple[Route, ...]


def alone(served: Served, signature: Any) -> Entry:
    """Entry of one version, which takes all questions."""
    return Entry(signature, served, {served.version: served}, (1.0,), (Route(served, ()),))


def shared(
    signature: Any, current: Served, loaded: Mapping[str, Served], route: registry.Routing
) -> Entry:
    """An entry with shares; versions that could not be taken leave theirs to the others."""
    shadows = tuple(loaded[one] for one in route.shadows if one in loaded)
    shares: dict[str, float] = {}
    for version, weight in route.weights.items():
        real = current.version if version == registry.CURRENT else version
        if real in loaded and weight > 0:
            shares[real] = shares.get(real, 0.0) + weight
    shares = shares or {current.version: 1.0}
    ends = np.cumsum(list(shares.values())) / sum(shares.values())
    ends[-1] = 1.0
    routes = tuple(
        Route(loaded[version], tuple(one for one in shadows if one.version != version))
        for version in shares
    )
    return Entry(signature, current, loaded, tuple(map(float, ends)), routes)


def path_of(source: Any) -> Path:
    """Path of a model file or a registry that is there."""
    if not isinstance(source, str | os.PathLike):
        raise InvalidTypeError(
            f"{source!r} is no source of models: give the path of a model file or a registry, or "
            "a dict of names to fitted models."
        )
    path = Path(os.fspath(source))
    if not path.exists():
        raise ModelFileError(f"There is no {path}. Name a model file, or a registry.")
    return path


def look(folder: Path, name: str) -> tuple[Any, ...]:
    """State that tells whether anything of a name has changed: its pointer, shares and files."""
    files = []
    for version in registry.version_names(folder, name):
        if path := registry.model_file(folder, name, version):
            files.append((version, state_of(path)))
    route = state_of(folder / name / "route.json")
    return registry.current_version(folder, name), route, tuple(files)


def state_of(path: Path) -> tuple[int, int, int] | None:
    """Numbers that change with a file; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def warm(predictor: Predictor) -> None:
    """Ask for a row, so that what is compiled or imported at a first call is there before it."""
    if predictor.n_features is None or predictor.names is not None:
        return
    with suppress(Exception):  # zeros need be no row of this model
        predictor(np.zeros((1, predictor.n_features)))
