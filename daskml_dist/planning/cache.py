"""The file of measured costs, in the user's cache folder."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import dask

from daskml_dist.planning.costs import Costs

__all__ = ["cache_file", "load", "save"]

logger = logging.getLogger(__name__)


def cache_file() -> Path | None:
    """The file's path; None where ``daskml_dist.planning.cache`` in Dask's config is False."""
    if not dask.config.get("daskml_dist.planning.cache", True):
        return None
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "daskml_dist" / "planning.json"


def load(key: str) -> Costs | None:
    """Costs that were saved under a key; None where there are none, or the file is broken."""
    path = cache_file()
    if path is None:
        return None
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        return Costs.of_dict(_read(path)[key])
    return None


def save(key: str, costs: Costs) -> None:
    """Keep costs under a key; where nothing can be written the next plan measures again."""
    path = cache_file()
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**_read(path), key: costs.as_dict()}, indent=1)
        # Another process never reads half of a file.
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        logger.info("Costs for planning are not kept: %s", error)


def _read(path: Path) -> Mapping[str, Any]:
    with suppress(OSError):
        return _parsed(path, path.stat().st_mtime_ns)
    return {}


@lru_cache(maxsize=4)
def _parsed(path: Path, changed: int) -> Mapping[str, Any]:
    """The file's values; read anew once it has changed."""
    with suppress(OSError, ValueError):
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict):
            return values
    return {}
