"""Served models: loaded from a file or a registry, found by name, replaced while in use.

`Models` holds a table of immutable entries (`_Entry`) by name. A request uses the versions of the
entry that it finds; a replacement makes a new entry, and a new table with it, and then changes the
single reference to the table. So neither waits for the other, and no request sees a partial change.
A version that cannot be loaded changes nothing: it is logged and counted once for each state of its
file, and the previous version stays served.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daskml_dist.errors import DaskMLDistError, InvalidTypeError, ModelFileError, UnknownModelError
from daskml_dist.errors.suggestions import suggest_nearest
from daskml_dist.inference.predictor import Predictor
from daskml_dist.inference.saved.manifest import make_manifest
from daskml_dist.inference.saved.model_file import load_formats
from daskml_dist.inference.saved.storage import read_bytes
from daskml_dist.serving import registry
from daskml_dist.serving.metrics import Metrics


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """Version of a model, in memory.

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
    """Version that answers a request, and shadow versions that predict the same rows.

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
class _Entry:
    """Versions served under one name, and how requests are divided between them; immutable."""

    # State of the files from which it was made: while it is unchanged, nothing is read again.
    signature: Any
    current: Served
    loaded: Mapping[str, Served]
    # Cumulative shares of the routes, up to 1, in which a point in [0, 1) is looked up.
    cumulative_shares: tuple[float, ...]
    routes: tuple[Route, ...]


def _make_single_entry(served: Served, signature: Any) -> _Entry:
    """Return the entry of a name whose single version answers all requests."""
    return _Entry(signature, served, {served.version: served}, (1.0,), (Route(served, ()),))


def _make_shared_entry(
    signature: Any, current: Served, loaded: Mapping[str, Served], route: registry.Routing
) -> _Entry:
    """Return an entry with shares; the share of a version that failed to load goes to the others.

    `loaded` has the current version, and those versions of the route that could be loaded.
    """
    shadows = tuple(loaded[shadow] for shadow in route.shadows if shadow in loaded)
    shares: dict[str, float] = {}
    for version, weight in route.weights.items():
        # The current version may be named twice, by "current" and by its number: shares are added.
        number = current.version if version == registry.CURRENT else version
        if number in loaded and weight > 0:
            shares[number] = shares.get(number, 0.0) + weight
    shares = shares or {current.version: 1.0}
    ends = np.cumsum(list(shares.values())) / sum(shares.values())
    ends[-1] = 1.0  # rounding could leave the last points of [0, 1) without a version
    routes = tuple(
        Route(loaded[version], tuple(shadow for shadow in shadows if shadow.version != version))
        for version in shares
    )
    return _Entry(signature, current, loaded, tuple(map(float, ends)), routes)


def check_source_path(source: Any) -> Path:
    """Return the path of a model file or a registry; raise if it does not exist."""
    if not isinstance(source, str | os.PathLike):
        raise InvalidTypeError(
            f"{source!r} is not a source of models: give the path of a model file or a registry, "
            "or a dict of names to fitted models."
        )
    path = Path(os.fspath(source))
    if not path.exists():
        raise ModelFileError(f"There is no {path}. Name a model file, or a registry.")
    return path


def _read_signature(folder: Path, name: str) -> tuple[Any, ...]:
    """Return a value that changes with a name's current version, its shares or its files.

    It is ``(current version, state of route.json, ((version, state of its file), ...))``.
    """
    files = []
    for version in registry.list_version_names(folder, name):
        if path := registry.find_model_file(folder, name, version):
            files.append((version, read_file_state(path)))
    route = read_file_state(folder / name / "route.json")
    return registry.read_current_version(folder, name), route, tuple(files)


def read_file_state(path: Path) -> tuple[int, int, int] | None:
    """Return time, size and inode of a file; None if it does not exist.

    The inode distinguishes files that replace each other within the time resolution of a file
    system.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _warm_up(predictor: Predictor) -> None:
    """Predict a row of zeros, so that the first request does not wait for imports and compilers."""
    # Named features may be texts or categories, for which zero is not valid.
    if predictor.n_features is None or predictor.names is not None:
        return
    # Some models refuse zeros; then the first request waits.
    with suppress(Exception):
        predictor(np.zeros((1, predictor.n_features)))


_LOG = logging.getLogger("daskml_dist.serving")
#: Parts of messages about versions that cannot be served.
_NO_VERSION = "the file does not name a version: write one with rollback()"
_NOTHING, _NEWEST = "no other version is served", "the newest complete version is served"
#: Fractional part of the golden ratio, for the Weyl sequence of `Models.route`.
_GOLDEN_RATIO = 0.6180339887498949


class Models:
    """Models of a file, a registry or a mapping, by name.

    A request keeps one reference to an immutable entry, so requests and replacements never wait for
    each other. Methods may be called from any thread.

    Parameters
    ----------
    source : str, path-like or mapping
        A model file, served under its name without the suffix; a registry (:func:`publish`), served
        under the names of its models; or a mapping of names to fitted models, or to functions that
        make them, for models that no file can hold.
    metrics : Metrics, optional
        Counter of served versions, and of versions that could not be loaded.
    method : str, optional
        Method of the models that is served. None: the first of `predict_proba`, `predict` and
        `transform` that a model has.
    all_versions : bool, default=False
        Whether all versions of a registry are loaded, so that requests can name them; otherwise the
        current ones and those with a share or a shadow.
    trusted : collection of str, optional
        Names of your own classes in the files (see :func:`daskml_dist.load`).
    given : mapping of str to mapping, optional
        Parameters that files do not hold, by the name of the model, such as the `module` of a
        network of PyTorch.

    Raises
    ------
    ModelFileError
        There is no such file or folder, or the one file is damaged. A damaged version in a
        registry is no error: it is logged and counted, and an older one is served.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> from daskml_dist.serving import Models, publish
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> clf = LogisticRegression().fit(X, np.array([0, 0, 1, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = (publish(clf, folder, 'model') for _ in range(2))
    ...     names = Models(folder).names()
    >>> names
    ['model']
    """

    def __init__(
        self,
        source: Any,
        *,
        metrics: Metrics | None = None,
        method: str | None = None,
        all_versions: bool = False,
        trusted: Collection[str] = (),
        given: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._metrics, self._method = metrics or Metrics(), method
        self._all_versions, self._trusted = all_versions, frozenset(trusted)
        self._user_params = dict(given or {})
        self._table: dict[str, _Entry] = {}
        # State of the file, or the reason, for each (name, version) that failed to load: it is
        # neither tried nor logged again before that changes.
        self._refused: dict[tuple[str, str], Any] = {}
        # The last error of listing the registry, which is logged once.
        self._away = ""
        # Requests routed without a key; `next` on it is atomic, so no lock is needed.
        self._count = itertools.count(1)
        # Held while the table changes, also by the watcher's thread; never for look-ups.
        self._changing = threading.Lock()
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None
        self._path: Path | None = None
        if isinstance(source, Mapping):
            # A function makes its model here: in a server after the fork, which some models do not
            # survive.
            for name, model in source.items():
                instance = model() if isinstance(model, Callable) else model  # type: ignore[arg-type]
                self.put(name, instance)
            return
        self._path = check_source_path(source)
        if not self._path.is_dir():
            registry.check_name(self._path.stem)
            # Raises if the file is damaged: without it there is nothing to serve.
            self._take_file(self._path)
            return
        self.refresh()

    # --- lookups -------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of the models that are served."""
        return sorted(self._table)

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model that are in memory.

        Raises
        ------
        UnknownModelError
        """
        return sorted(self._entry(name).loaded, key=int)

    def is_ready(self, name: str | None = None) -> bool:
        """Return whether a model is served; without a name, whether any is."""
        return bool(self._table) if name is None else name in self._table

    def why_none(self) -> str:
        """Return a message for a server without a served model."""
        if (
            self._path is not None
            and self._path.is_dir()
            and not registry.list_model_names(self._path)
        ):
            return (
                f"{self._path} contains no models: a registry has files "
                "NAME/VERSION/model.skops, as daskml_dist.serving.publish writes them. Publish "
                "one, name a model file instead, or start with --watch to wait for a model."
            )
        return (
            "None of the models can be loaded; the log has the reasons. Publish another "
            "version, or start with --watch to wait for one."
        )

    def get(self, name: str, version: str | None = None) -> Served:
        """Return a version of a model.

        Parameters
        ----------
        name : str
        version : str, optional
            None: the current one.

        Raises
        ------
        UnknownModelError
            No such model or version is in memory; the message lists the existing ones.
        """
        entry = self._entry(name)
        if version is None:
            return entry.current
        served = entry.loaded.get(version)
        if served is None:
            # Cut to 40 characters: the version comes from the path of a request.
            raise UnknownModelError(
                f"No version {version[:40]!r} of {name!r} is served; served: "
                f"{', '.join(sorted(entry.loaded, key=int))}. Other versions need all_versions "
                "(--all-versions), or a share of the requests."
            )
        return served

    def route(self, name: str, key: str | bytes | None = None) -> Route:
        """Return the version that answers a request, by the shares of its versions.

        Parameters
        ----------
        name : str
        key : str or bytes, optional
            Identity of a user or session: requests with the same key get the same version as long
            as the shares stay. None: requests are spread so that any run of them has the shares.

        Raises
        ------
        UnknownModelError
        """
        entry = self._entry(name)
        if len(entry.routes) == 1:
            return entry.routes[0]
        # A point in [0, 1) falls into the share of one version. Without a key the points are a Weyl
        # sequence (multiples of the golden ratio modulo 1), which is spread evenly over any run of
        # requests; with a key they are a hash of it, which is the same in all processes and after
        # restarts.
        if key is None:
            point = next(self._count) * _GOLDEN_RATIO % 1.0
        else:
            data = key.encode() if isinstance(key, str) else key
            point = int.from_bytes(hashlib.blake2b(data, digest_size=6).digest()) / 2**48
        return entry.routes[bisect.bisect_right(entry.cumulative_shares, point)]

    def _entry(self, name: str) -> _Entry:
        """Return the entry of a name; raise with the nearest names if there is none."""
        try:
            return self._table[name]
        except KeyError:
            pass
        served_names = ", ".join(self.names()) or "none"
        name = name[:128]  # it comes from the path of a request, and may be very long
        hint = suggest_nearest(name, self._table)
        raise UnknownModelError(f"No model {name!r} is served; served: {served_names}.{hint}")

    # --- changes -------------------------------------------------------------------------------

    def put(self, name: str, model: Any, version: str = "1") -> Served:
        """Serve a fitted model from memory, replacing any other with its name.

        Parameters
        ----------
        name : str
        model : estimator
        version : str, default="1"

        Returns
        -------
        Served
        """
        registry.check_name(name)
        served = Served(name, version, Predictor(model, self._method), make_manifest(model))
        with self._changing:
            self._swap(_make_single_entry(served, None))
        return served

    def refresh(self) -> list[str]:
        """Check the file or registry once, and load what has changed.

        Returns
        -------
        list of str
            Names whose served versions or shares have changed.
        """
        if self._path is None:
            return []
        with self._changing:
            if not self._path.is_dir():
                return self._refresh_file(self._path)
            changed = []
            try:
                names = registry.list_model_names(self._path)
            except OSError as error:  # a mount is missing: models in memory stay served
                if str(error) != self._away:
                    _LOG.warning("Cannot check %s: %s", self._path, error)
                self._away = str(error)
                return []
            self._away = ""
            for name in names:
                try:
                    if self._refresh_name(self._path, name):
                        changed.append(name)
                except (DaskMLDistError, OSError) as error:
                    self._refuse(name, "route", str(error), None)
            # Names that are no longer listed are dropped, but only if the registry itself exists.
            for name in set(self._table) - set(names):
                if not registry.is_removed(self._path, name):
                    continue
                _LOG.info("model %s: its folder is gone; no longer served", name)
                self._table = {n: e for n, e in self._table.items() if n != name}
                changed.append(name)
            return changed

    def watch(self, interval: float = 1.0) -> None:
        """Check the file or registry periodically, in a thread, until `close`.

        Names, times and sizes of files are compared, so it works on network mounts, which send no
        notifications.

        Parameters
        ----------
        interval : float, default=1.0
            Seconds between two checks.
        """
        if self._watcher is not None or self._path is None:
            return

        def loop() -> None:
            while not self._stop.wait(interval):
                try:
                    self.refresh()
                except Exception:  # models in memory stay served
                    _LOG.exception("Looking for new models failed; will try again")

        self._watcher = threading.Thread(target=loop, name="daskml_dist-watch", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()

    # --- a registry ----------------------------------------------------------------------------

    def _refresh_name(self, folder: Path, name: str) -> bool:
        """Update the versions served for a name of a registry; return whether any changed."""
        # Read before the files: if these change in the meantime, the next check sees another one.
        signature = _read_signature(folder, name)
        previous = self._table.get(name)
        if previous is not None and previous.signature == signature:
            return False
        route = registry.read_route(folder, name)
        current = self._current(folder, name, previous)
        if current is None:
            return False
        # Versions with a share, and shadows; with `all_versions` every existing one.
        loaded = {current.version: current}
        versions = {*route.weights, *route.shadows} - {registry.CURRENT}
        if self._all_versions:
            versions |= set(registry.list_version_names(folder, name))
        for version in sorted(versions - set(loaded), key=int):
            if served := self._version(folder, name, version, previous):
                loaded[version] = served
        self._swap(_make_shared_entry(signature, current, loaded, route))
        return True

    def _current(self, folder: Path, name: str, previous_entry: _Entry | None) -> Served | None:
        """Return the version to serve by default; None if none can be loaded.

        It is the one that the file ``current`` names, or the newest without such a file. If that
        cannot be loaded, it is the one served `previous_entry`, or at a start the newest older one.
        """
        while True:
            current = registry.read_current_version(folder, name)
            if current is not None:
                self._refused.pop((name, registry.CURRENT), None)
            elif (folder / name / registry.CURRENT).exists():
                self._refuse(name, registry.CURRENT, _NO_VERSION, None, _NEWEST)
                if previous_entry is not None:
                    return previous_entry.current  # the newest version may not be released yet
            versions = registry.list_version_names(folder, name)
            default = current or (versions[-1] if versions else None)
            if default is None:
                return None
            if served := self._version(folder, name, default, previous_entry):
                return served
            # It was not loaded, and is still current: it is damaged. Otherwise a publisher has made
            # another version current and deleted this one, so the next one is tried.
            if registry.read_current_version(folder, name) == current:
                break
        if previous_entry is not None:
            return previous_entry.current
        for version in reversed(versions):
            if int(version) < int(default) and (
                served := self._version(folder, name, version, None)
            ):
                return served
        return None

    def _version(
        self, folder: Path, name: str, version: str, previous_entry: _Entry | None
    ) -> Served | None:
        """Return a version, loaded only if its file has changed; log and return None if damaged."""
        # `previous_entry` has versions that were loaded, `_refused` those that failed, each with
        # the state of its file at the time.
        path = registry.find_model_file(folder, name, version)
        if path is None:
            self._refuse(name, version, "has no model file", None)
            return None
        state = read_file_state(path)
        if previous_entry is not None and (served := previous_entry.loaded.get(version)):
            if dict(previous_entry.signature[2]).get(version) == state:
                return served
        if state is not None and self._refused.get((name, version)) == state:
            return None
        try:
            return self._load_file(path, name, version)
        except Exception as error:  # a damaged or foreign file may raise anything
            # A file that was deleted while being read is reported by the next check.
            if path.exists():
                self._refuse(name, version, f"{type(error).__name__}: {error}", state)
            return None

    def _load_file(self, path: Path, name: str, version: str) -> Served:
        """Return the model in a file, read and called once."""
        form = load_formats().get(path.suffix)
        if form is None:
            raise ModelFileError(
                f"{path} ends in none of {', '.join(load_formats())}, the endings of model files."
            )
        # The file is read once, so that checksums and model are of the same bytes.
        data = read_bytes(str(path))
        manifest = form.read_manifest(data, str(path))
        model = form.read(data, str(path), self._trusted, **self._user_params.get(name, {}))
        predictor = Predictor(model, self._method)
        _warm_up(predictor)
        return Served(name, version, predictor, manifest)

    def _refuse(
        self, name: str, version: str, reason: str, state: Any, fallback: str = _NOTHING
    ) -> None:
        """Log and count that a version cannot be served, once for each state of its file.

        `fallback` describes what is served instead, if no version of the name was served before.
        """
        cause = state if state is not None else reason
        if self._refused.get((name, version)) == cause:
            return
        self._refused[name, version] = cause
        self._metrics.failed(name)
        entry = self._table.get(name)
        outcome = f"version {entry.current.version} is still served" if entry else fallback
        _LOG.error("model %s: version %s cannot be loaded (%s); %s", name, version, reason, outcome)

    # --- a file --------------------------------------------------------------------------------

    def _refresh_file(self, path: Path) -> list[str]:
        """Serve the current contents of the single file, if it has changed and can be loaded."""
        # If the file is missing, its model stays served.
        state, previous = read_file_state(path), self._table.get(path.stem)
        if previous is None or state is None or previous.signature == state:
            return []
        if self._refused.get((path.stem, "file")) == state:
            return []
        try:
            self._take_file(path)
        except Exception as error:  # a damaged or foreign file may raise anything
            self._refuse(path.stem, "file", f"{type(error).__name__}: {error}", state)
            return []
        return [path.stem]

    def _take_file(self, path: Path) -> None:
        """Load the single file and serve it, as the next version."""
        state = read_file_state(path)
        previous = self._table.get(path.stem)
        version = str(int(previous.current.version) + 1) if previous else "1"
        self._swap(_make_single_entry(self._load_file(path, path.stem, version), state))

    def _swap(self, entry: _Entry) -> None:
        """Serve an entry from the next request on by changing one reference; log it."""
        current, previous = entry.current, self._table.get(entry.current.name)
        self._table = {**self._table, current.name: entry}
        if previous is None or previous.current is not current:
            _LOG.info("model %s: serving version %s", current.name, current.version)
            self._metrics.swapped(current.name, current.version)
        # Clients of the previous version may send rows that this one refuses.
        if previous is not None and (
            previous.current.manifest.get("inputs") != current.manifest.get("inputs")
        ):
            _LOG.warning("model %s: version %s has different inputs", current.name, current.version)
