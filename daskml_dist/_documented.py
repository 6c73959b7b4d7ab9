"""Mixin of what has a page in the reference: the "?" of its diagram in a notebook leads there."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

import dask

__all__ = ["Documented"]

#: Pages below the site's address; docs/conf.py makes them.
_PAGE = "reference/{estimator_module}.{estimator_name}.html"


class Documented:
    """Mixin of estimators and transformers, for scikit-learn's HTML.

    The address of the site is the package's own (``Documentation`` of its project's URLs), or that
    of Dask's configuration, ``daskml_dist.docs``, such as that of a site built at home. Without
    either there is no link.
    """

    _doc_link_module = "daskml_dist"

    @property
    def _doc_link_template(self) -> str:
        site = dask.config.get("daskml_dist.docs", None) or _own_site()
        return f"{site.rstrip('/')}/{_PAGE}" if site else ""

    def _doc_link_url_param_generator(self) -> dict[str, Any]:
        # A class has its page by the room that it is imported from.
        room = ".".join(type(self).__module__.split(".")[:2])
        return {"estimator_module": room, "estimator_name": type(self).__name__}


@cache
def _own_site() -> str:
    """Address of the documentation, as the package's metadata tell; empty where they do not."""
    try:
        urls = metadata("daskml-dist").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    named = dict(url.split(", ", 1) for url in urls if ", " in url)
    return str(named.get("Documentation", ""))
