"""Registries: folders that hold models by name and version, with the current version of each.

::

    FOLDER/NAME/VERSION/model.skops  or .safetensors, of what skops cannot hold
    FOLDER/NAME/current       the version that is served, a line of text
    FOLDER/NAME/route.json    shares of versions, and shadow versions; optional

Versions are numbered from 1. A version is written to a hidden folder and then renamed, so that
readers never see a part of one; it is valid if the checksums in its manifest match its parts.
Likewise, ``current`` and ``route.json`` are each replaced by one rename. No lock is taken, as
network file systems lock differently or not at all: several publishers, and servers that check
every second, only need atomic renames.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

from daskml_dist.errors import InvalidParameterError, ModelFileError, UnknownModelError
from daskml_dist.errors.signatures import ParameterObject, suggest_arguments
from daskml_dist.inference.predictor import Predictor
from daskml_dist.inference.saved import changes_file
from daskml_dist.inference.saved.archive import compute_checksum
from daskml_dist.inference.saved.model_file import load_formats, read_manifest, save
from daskml_dist.inference.saved.storage import read_bytes, write_bytes

_LOG = logging.getLogger("daskml_dist.serving")
_ON_ERROR = ("raise", "log")


class Publisher(ParameterObject):
    """Publisher of new versions of one model, for example from a stream.

    Parameters
    ----------
    folder : str or path-like
        The registry, created if it does not exist.
    name : str
        Name of the model.
    keep : int or None, default=5
        Number of the newest versions that are kept, so that an endless stream does not fill the
        disk; the current version and those with a share of the requests are kept in addition. None:
        all are kept.
    current : bool, default=True
        Whether each version becomes the one that is served.
    whole_every : int, default=1
        One of this many versions is complete; the others hold only the rows of a table that differ
        from it. Values above 1 are only for models over ids (``FactorizationMachineClassifier`` and
        others).
    on_error : {"raise", "log"}, default="raise"
        Treatment of a version that cannot be written (a full disk, a mount that is away): the error
        is raised, or logged, and the next model is tried.

    Attributes
    ----------
    version : str or None
        Version of the last model that was published.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning.

    See Also
    --------
    publish : The same, once.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> from daskml_dist.serving import Publisher
    >>> rng = np.random.default_rng(0)
    >>> publisher = Publisher(tempfile.mkdtemp(), "clicks", keep=3)
    >>> clf = SGDClassifier()
    >>> with clf.stream(classes=[0, 1], publish=publisher, publish_every=10) as s:
    ...     for _ in range(50):
    ...         X = rng.standard_normal((100, 3))
    ...         loss = s.learn(X, (X[:, 0] > 0).astype(int))
    >>> publisher.version
    '5'
    """

    def __init__(
        self,
        folder: Any,
        name: str,
        *,
        keep: int | None = 5,
        current: bool = True,
        whole_every: int = 1,
        on_error: str = "raise",
    ) -> None:
        check_name(name)
        _check_keep(keep)
        _check_whole_every(whole_every)
        if on_error not in _ON_ERROR:
            raise InvalidParameterError(f"on_error={on_error!r}: use one of {list(_ON_ERROR)}.")
        self.folder, self.name = Path(folder), name
        self.keep, self.current, self.on_error = keep, current, on_error
        self.whole_every = int(whole_every)
        #: The last complete version, and the number of later ones that hold changes.
        self._last_complete: _WholeVersion | None = None
        self._n_since = 0
        self.version: str | None = None

    def __call__(self, model: Any) -> str | None:
        """Publish a fitted model.

        Parameters
        ----------
        model : estimator

        Returns
        -------
        str or None
            Its version; None if it could not be written and `on_error` is "log".

        Raises
        ------
        ModelFileError
            It cannot be written.
        InvalidParameterError
            It neither predicts nor transforms.
        """
        if self.whole_every > 1 and not getattr(model, "_publishes_rows", False):
            raise InvalidParameterError(
                f"{type(model).__name__} has no growing table of ids, so there are no changes to "
                "publish. Leave whole_every at 1."
            )
        try:
            self.version = self._publish(model)
        except ModelFileError as error:
            if self.on_error == "raise":
                raise
            _LOG.error("model %s: not published (%s); the next version will be", self.name, error)
            return None
        return self.version

    def _publish(self, model: Any) -> str:
        """Write a version, complete or as changes; return it."""
        complete, model_folder = self._last_complete, self.folder / self.name
        path = (
            None if complete is None else find_model_file(self.folder, self.name, complete.version)
        )
        if complete is not None and path is not None and self._n_since < self.whole_every - 1:
            base = f"../{complete.version}/{path.name}"
            data = changes_file.write_changes(model, complete.model, base, complete.checksum)
            version = _add_version(
                model_folder, self.current, lambda aside: write_bytes(str(aside / _CHANGES), data)
            )
            self._n_since += 1
            if self.keep is not None:
                prune_versions(self.folder, self.name, self.keep)
            return version
        version = publish(model, self.folder, self.name, keep=self.keep, current=self.current)
        if self.whole_every > 1:
            data = read_bytes(str(_find_version_file(self.folder, self.name, version)))
            self._last_complete = _WholeVersion(version, copy.copy(model), compute_checksum(data))
            self._n_since = 0
        return version

    def __repr__(self) -> str:
        return f"Publisher({str(self.folder)!r}, {self.name!r}, keep={self.keep})"


@dataclass(frozen=True, eq=False)
class _WholeVersion:
    """Version to which the changes of later ones refer: its number, model, and file checksum."""

    version: str
    model: Any
    checksum: str


#: Name of a model file that holds changes.
_CHANGES = f"model{changes_file.SUFFIX}"
#: Name of the current version among the weights of a route, and of the file that contains its
#: number.
CURRENT = "current"
_ROUTE = "route.json"
#: Valid names of models: safe as a folder, and as a part of a URL path.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
#: Names of the hidden folders of publishers and of `prune_versions`.
_HIDDEN_FOLDER = re.compile(r"\.[0-9a-f]{32}\.(new|old)")
#: Seconds after which such a folder is deleted, since its process was killed: a day, longer than
#: any model takes to write.
_ABANDONED_SECONDS = 86_400.0


@dataclass(frozen=True)
class Routing:
    """Weights of versions for dividing requests, and shadow versions.

    Shadow versions predict the same rows, and their answers are dropped.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {CURRENT: 1.0})
    shadows: tuple[str, ...] = ()


@suggest_arguments
def publish(
    model: Any, folder: Any, name: str, *, keep: int | None = None, current: bool = True
) -> str:
    """Write a fitted model into a registry as the next version of its name.

    Parameters
    ----------
    model : estimator
        Fitted, with a method that predicts or transforms; one that :func:`daskml_dist.save` can
        store.
    folder : str or path-like
        The registry, created if it does not exist; on a file system mounted on this machine.
    name : str
        Letters, digits, ``.``, ``_`` and ``-``.
    keep : int, optional
        Number of the newest versions that are kept; older ones are deleted, except the current one
        and those with a share of the requests. None: all are kept.
    current : bool, default=True
        Whether the version becomes the one that is served.

    Returns
    -------
    str
        The version: "1", "2", ...

    Raises
    ------
    InvalidParameterError
        The name or `keep` has no meaning, or the model neither predicts nor transforms.
    ModelFileError
        It cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> from daskml_dist.serving import publish
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> clf = LogisticRegression().fit(X, np.array([0, 0, 1, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = (publish(clf, folder, 'model') for _ in range(2))
    >>> first, second
    ('1', '2')
    """
    check_name(name)
    _check_keep(keep)
    # Raises if the model could not be served: now, rather than in the log of a server.
    Predictor(model)
    model_folder = Path(folder) / name
    version = _add_version(model_folder, current, lambda aside: _save_in_any_format(model, aside))
    # Pruned last, so that the current version is kept.
    if keep is not None:
        prune_versions(folder, name, keep)
    return version


def _add_version(home: Path, current: bool, write: Callable[[Path], None]) -> str:
    """Call `write` to fill a folder with a version's files; make it the next version; return it."""
    hidden_folder = home / f".{uuid.uuid4().hex}.new"
    try:
        hidden_folder.mkdir(parents=True)
        write(hidden_folder)
        version = _move_to_next_version(hidden_folder, home)
        # Made current only once it is complete.
        if current:
            _set_current(home, version)
    except OSError as error:
        raise ModelFileError(
            f"Cannot write into {home} ({error}). Name a folder that you may write to."
        ) from error
    finally:
        # Exists only after a failure; otherwise it was renamed.
        shutil.rmtree(hidden_folder, ignore_errors=True)
    return version


@suggest_arguments
def rollback(folder: Any, name: str, version: str | None = None) -> str:
    """Make an earlier version the current one.

    Parameters
    ----------
    folder : str or path-like
    name : str
    version : str, optional
        None: the last one before the current that is whole.

    Returns
    -------
    str
        The version that is current now.

    Raises
    ------
    UnknownModelError
        There is no such version.
    ModelFileError
        It is damaged.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> from daskml_dist.serving import publish, rollback
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> clf = LogisticRegression().fit(X, np.array([0, 0, 1, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = (publish(clf, folder, 'model') for _ in range(2))
    ...     now = rollback(folder, 'model')
    >>> now
    '1'
    """
    model_folder = _find_model_folder(folder, name)
    # Reading a manifest verifies the checksums of the whole file.
    if version is not None:
        read_manifest(_find_version_file(folder, name, version))
        _set_current(model_folder, version)
        return version
    # Newest first: the last version before the current one with valid checksums.
    current = read_current_version(folder, name)
    for candidate in reversed(list_version_names(folder, name)):
        if current is not None and int(candidate) >= int(current):
            continue
        try:
            read_manifest(_find_version_file(folder, name, candidate))
        except ModelFileError:
            continue
        _set_current(model_folder, candidate)
        return candidate
    raise UnknownModelError(
        f"{model_folder} has no complete version before {current}. Its versions: "
        f"{', '.join(list_version_names(folder, name)) or 'none'}."
    )


def prune_versions(folder: Any, name: str, keep: int) -> list[str]:
    """Delete old versions; return them.

    The newest `keep` versions, the current one, and those with a share or a shadow are kept.
    """
    model_folder, route = _find_model_folder(folder, name), read_route(folder, name)
    # Servers may load these at any time.
    versions = list_version_names(folder, name)
    kept_versions = {read_current_version(folder, name), *route.weights, *route.shadows}
    kept_versions |= _find_bases(model_folder, kept_versions.union(versions[-keep:]))
    deleted = []
    for version in versions[:-keep]:
        if version in kept_versions:
            continue
        hidden_folder = model_folder / f".{uuid.uuid4().hex}.old"
        # Renamed first, which is atomic: readers see the complete version, or none of it.
        try:
            os.replace(model_folder / version, hidden_folder)
        except FileNotFoundError:  # another process has deleted it
            continue
        deleted.append(version)
        shutil.rmtree(hidden_folder, ignore_errors=True)
    # Hidden folders of publishers that were killed before they could delete them.
    for hidden in model_folder.glob(".*"):
        if _HIDDEN_FOLDER.fullmatch(hidden.name) and _is_abandoned(hidden):
            shutil.rmtree(hidden, ignore_errors=True)
    return deleted


def _find_bases(home: Path, versions: Collection[str | None]) -> set[str | None]:
    """Return the versions to which the changes in some versions refer."""
    paths = (home / version / _CHANGES for version in versions if version is not None)
    bases: set[str | None] = set()
    for path in paths:
        with suppress(OSError, ModelFileError):
            bases.add(changes_file.read_base_version(path))
    return bases


@suggest_arguments
def set_route(
    folder: Any, name: str, weights: Mapping[str, float] | None = None, shadows: Sequence[str] = ()
) -> None:
    """Split requests between versions, and let shadow versions predict the same rows.

    Parameters
    ----------
    folder : str or path-like
    name : str
    weights : mapping of str to float, optional
        Shares of versions, in any unit; ``"current"`` is always the current version. None: the
        current version gets all requests.
    shadows : sequence of str, optional
        Versions that also predict the rows of each request; their answers are dropped.

    Raises
    ------
    UnknownModelError
        There is no such version.
    InvalidParameterError
        A weight is negative or no finite number, or all are 0.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from daskml_dist.linear_model import LogisticRegression
    >>> from daskml_dist.serving import publish, set_route
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> clf = LogisticRegression().fit(X, np.array([0, 0, 1, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = (publish(clf, folder, 'model') for _ in range(2))
    ...     set_route(folder, 'model', {first: 0.9, second: 0.1})
    """
    model_folder = _find_model_folder(folder, name)
    route = _make_routing({CURRENT: 1.0} if weights is None else weights, shadows)
    # The shares of versions that a server cannot load would go to the others.
    for version in {*route.weights, *route.shadows} - {CURRENT}:
        _find_version_file(folder, name, version)
    content = {"weights": dict(route.weights), "shadows": list(route.shadows)}
    write_bytes(str(model_folder / _ROUTE), json.dumps(content, indent=2).encode())


def read_route(folder: Any, name: str) -> Routing:
    """Return the weights and shadows of a name."""
    path = Path(folder) / name / _ROUTE
    try:
        content = json.loads(path.read_text("utf-8"))
        return _make_routing(content["weights"], content.get("shadows", []))
    except FileNotFoundError:
        return Routing()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{path} cannot be read ({type(error).__name__}: {error}). Write it with set_route()."
        ) from error


def list_model_names(folder: Any) -> list[str]:
    """Return the names of the models of a registry: folders with a valid name and a version."""
    names = [path.name for path in Path(folder).iterdir() if path.is_dir()]
    return sorted(
        name for name in names if _NAME.fullmatch(name) and list_version_names(folder, name)
    )


def list_version_names(folder: Any, name: str) -> list[str]:
    """Return the versions of a name that have a model file, complete or not, in order."""
    try:
        versions = [version for version in os.listdir(Path(folder) / name) if _is_version(version)]
    except OSError:
        return []
    return sorted(
        (version for version in versions if find_model_file(folder, name, version)), key=int
    )


def is_removed(folder: Any, name: str) -> bool:
    """Return whether a name has no versions any more; False if the file system may be missing."""
    registry_folder = Path(folder)
    try:
        # An empty folder may be the mount point of an unmounted file system.
        if not any(registry_folder.iterdir()):
            return False
        os.listdir(registry_folder / name)
    except FileNotFoundError:
        return registry_folder.exists()
    except OSError:
        return False
    return not list_version_names(folder, name)


def read_current_version(folder: Any, name: str) -> str | None:
    """Return a registry's current version, even if its files are missing."""
    try:
        version = (Path(folder) / name / CURRENT).read_text("utf-8").strip()
    except (OSError, ValueError):
        return None
    return version if _is_version(version) else None


def find_model_file(folder: Any, name: str, version: str) -> Path | None:
    """Return the model file of a version; None if it has none."""
    # In the order in which a publisher tries the formats.
    for suffix in load_formats():
        path = Path(folder) / name / version / f"model{suffix}"
        if path.is_file():
            return path
    return None


def _check_keep(keep: int | None) -> None:
    """Check how many versions are to be kept."""
    if keep is not None and not (isinstance(keep, Integral) and keep >= 1):
        raise InvalidParameterError(f"keep={keep!r}: use an integer >= 1, or None for all.")


def _check_whole_every(whole_every: int) -> None:
    """Check the interval between complete versions."""
    if not (isinstance(whole_every, Integral) and whole_every >= 1):
        raise InvalidParameterError(f"whole_every={whole_every!r}: use an integer >= 1.")


def check_name(name: str) -> None:
    """Check the name of a model."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidParameterError(
            f"{name!r} is not a valid model name: use letters, digits, '.', '_' and '-', with a "
            "letter or digit first, 128 at most."
        )


def _is_version(text: str) -> bool:
    """Return whether a text is a version number: no leading zero, and below 10**18."""
    return text.isascii() and text.isdigit() and len(text) < 19 and text[0] != "0"


def _is_abandoned(folder: Path) -> bool:
    """Return whether a folder is unchanged for so long that its process must have ended."""
    try:
        # A file server has its own clock: the age is relative to a file created now.
        with tempfile.NamedTemporaryFile(dir=folder.parent, prefix=".clock") as file:
            file_server_time = os.fstat(file.fileno()).st_mtime
        return file_server_time - folder.stat().st_mtime > _ABANDONED_SECONDS
    except OSError:  # gone meanwhile, or the disk is full
        return False


def _find_model_folder(folder: Any, name: str) -> Path:
    """Return the folder of a model; raise if there is none."""
    model_folder = Path(folder) / name
    if not _NAME.fullmatch(name) or not model_folder.is_dir():
        raise UnknownModelError(f"{folder} has no model {name!r}. Publish it first.")
    return model_folder


def _find_version_file(folder: Any, name: str, version: str) -> Path:
    """Return the model file of a version; raise, with the versions that exist, if there is none."""
    path = find_model_file(folder, name, version) if _is_version(version) else None
    if path is None:
        versions = ", ".join(list_version_names(folder, name)) or "none"
        raise UnknownModelError(f"{name!r} has no version {version!r}. Its versions: {versions}.")
    return path


def _save_in_any_format(model: Any, folder: Path) -> None:
    """Write a model in the first format that can hold it; raise the first one's error if none."""
    # skops first, which scikit-learn's users can read too; networks need safetensors.
    first_error: ModelFileError | None = None
    for suffix in load_formats():
        try:
            save(model, folder / f"model{suffix}")
        except ModelFileError as error:
            first_error = first_error or error
        else:
            return
    assert first_error is not None
    raise first_error


def _move_to_next_version(hidden_folder: Path, home: Path) -> str:
    """Rename a folder to the next free version number, and return the number."""
    # Another publisher may take the number between the listing and the rename: try the next one.
    while True:
        numbers = [int(entry) for entry in os.listdir(home) if _is_version(entry)]
        version = str(max(numbers, default=0) + 1)
        try:
            os.rename(hidden_folder, home / version)
        except OSError:  # a folder that is not empty is not replaced
            if (home / version).exists():
                continue
            raise
        return version


def _set_current(home: Path, version: str) -> None:
    """Make a version the current one; readers find the previous number or this one."""
    write_bytes(str(home / CURRENT), f"{version}\n".encode())


def _make_routing(weights: Mapping[str, Any], shadows: Sequence[str]) -> Routing:
    """Return weights and shadows, checked except for whether the versions exist."""
    # A string is a sequence, too: "12" would be the versions 1 and 2.
    if isinstance(shadows, str):
        raise InvalidParameterError(
            f"shadows={shadows!r}: use a list of versions, such as shadows=[{shadows!r}]."
        )
    try:
        numbers = {str(version): float(weight) for version, weight in weights.items()}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidParameterError(
            f"weights={weights!r}: use a mapping of versions to numbers, such as "
            f"{{{CURRENT!r}: 9, '3': 1}}."
        ) from error
    # NaN, overflow, and zero total weight fail the first comparison.
    total = sum(numbers.values())
    if not 0 < total < float("inf") or min(numbers.values()) < 0:
        raise InvalidParameterError(f"weights={dict(weights)}: use numbers >= 0, one of them > 0.")
    versions = {version for version in numbers if version != CURRENT} | set(shadows)
    if wrong := sorted(str(version) for version in versions if not _is_version(str(version))):
        raise InvalidParameterError(
            f"{wrong[0]!r} is not a version: use its number as a string, or {CURRENT!r} among "
            "weights."
        )
    return Routing(numbers, tuple(map(str, shadows)))
