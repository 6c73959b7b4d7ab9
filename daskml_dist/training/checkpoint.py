"""Checkpoints: a fit in parts, with its state in a file between them.

Each part is a fit of `every` passes that goes on from the state of the one before, so the state
is whole and consistent under every policy. Under ``"sync"`` and ``"allreduce"`` the parts make
the same steps as a fit without checkpoints; ``"local"`` and ``"average"`` average their lanes at
the end of each part.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daskml_dist.errors import CheckpointError, InvalidParameterError
from daskml_dist.errors.names import NamedParameters
from daskml_dist.ps.shard_state import ShardState
from daskml_dist.training.checkpoint_files import Files, why
from daskml_dist.training.checkpoint_format import encode

__all__ = ["Checkpoint"]


@dataclass(frozen=True)
class Checkpoint(NamedParameters):
    """Place and times at which a fit saves itself.

    ``path`` is the newest checkpoint, ``path.1`` the one before, up to ``path.<keep - 1>``. A new
    one is written as ``path.new``; once it is whole, each file moves up by one name. A crash at
    any instant leaves the last whole one under one of these names, even where moving means to
    copy and delete, as in object stores; :meth:`load` finds it.

    A file is an ``.npz``: parameters, optimizer state and facts in JSON, with a checksum of every
    array and without pickle. It is read only if it is whole. On a local disk only its owner may
    read it.

    Parameters
    ----------
    path : str or path
        A file in an existing folder, or the URL of one on any file system that fsspec knows, such
        as ``"s3://bucket/fit.npz"``. The client alone reads and writes it. Two fits at a time
        need two paths.
    every : int, default=1
        Passes between two checkpoints.
    resume : bool, default=False
        Go on from the newest whole checkpoint where there is one, with any policy and any number
        of workers, lanes and servers.
    keep : int, default=2
        Checkpoints kept. With two or more, a fit whose newest file was damaged later goes on from
        the one before.

    Raises
    ------
    InvalidParameterError
        A parameter has no meaning.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from daskml_dist.callbacks import Checkpoint
    >>> from daskml_dist.linear_model import SGDClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keep = Checkpoint(f'{folder}/fit.npz', resume=True)
    ...     clf = SGDClassifier(max_iter=2, tol=None, checkpoint=keep, random_state=0).fit(X, y)
    ...     longer = SGDClassifier(max_iter=3, tol=None, checkpoint=keep, random_state=0).fit(X, y)
    >>> longer.n_iter_  # of which the first two were in the file
    3
    """

    path: str | os.PathLike[str]
    every: int = 1
    resume: bool = False
    keep: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise InvalidParameterError(
                f"Checkpoint(path={self.path!r}): give the path or the URL of a file."
            )
        for name, unit in (("every", "passes"), ("keep", "files")):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidParameterError(
                    f"Checkpoint({name}={value!r}): give an integer >= 1, in {unit}."
                )

    def check_writable(self) -> None:
        """Try to write, move and remove a small file.

        Raises
        ------
        CheckpointError
            One of them failed, the file system is unknown or not installed, or something that
            is no regular file has one of the names.
        """
        files = self._files()
        try:
            files.probe()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"Cannot write checkpoints to {self.path} ({why(error)}). Name a file in a "
                "folder that exists, has room, and that you may write to."
            ) from error

    def save(self, state: ShardState | NDArray[np.uint8], facts: dict[str, Any]) -> None:
        """Write the state, and facts that JSON can hold, as the newest checkpoint.

        Parameters
        ----------
        state : ShardState, or the log of a round solver
        facts : dict

        Raises
        ------
        CheckpointError
            It could not be written, for example because the disk is full. The newest whole one
            is as it was.
        """
        files, data = self._files(), encode(state, facts)
        try:
            if files.is_whole(files.new):  # a crash came while the files moved
                files.rotate()
            files.write(files.new, data)
            files.rotate()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"Cannot save the checkpoint {self.path} ({why(error)}). The last one that was "
                "saved is whole. Make room, or mend access to the file, and fit again with "
                "resume=True to go on from there."
            ) from error

    def load(self) -> tuple[ShardState, dict[str, Any]]:
        """Read the newest whole checkpoint; a `UserWarning` tells if a newer one is damaged.

        Returns
        -------
        state : ShardState
        facts : dict

        Raises
        ------
        CheckpointError
            There is none, none is whole, or it has another format version.
        """
        found = self._files().newest()
        if found is None:
            raise CheckpointError(
                f"There is no checkpoint {self.path}. Correct the path, or set resume=False to "
                "begin anew."
            )
        return found

    def _files(self) -> Files:
        return Files.of(os.fspath(self.path), self.keep)
