"""The scheduler's side: it keeps the last fits, and puts their page into Dask's dashboard."""

from __future__ import annotations

import logging
import sys
from typing import Any

from distributed import SchedulerPlugin

from daskml_dist.diagnostics.live.fits import HANDLER, RecentFits
from daskml_dist.diagnostics.live.heartbeats import PULSES

__all__ = ["NAME", "TrainingPage", "add_tab", "find_dashboard", "open_page"]

logger = logging.getLogger(__name__)

#: Of the plugin, at the scheduler; of the page, in the dashboard.
NAME, PAGE = "daskml-dist-training", "training"
#: The page that the tab stands behind.
_BEFORE = "system"


class TrainingPage(SchedulerPlugin):
    """Keeper of the last fits of a cluster.

    Attributes
    ----------
    fits : RecentFits
    """

    name = NAME
    idempotent = True

    def __init__(self) -> None:
        self.fits = RecentFits()

    def take(self, events: list[dict[str, Any]]) -> None:
        """Take what a client tells."""
        try:
            self.fits.take(events)
        except Exception:
            logger.debug("What a fit tells cannot be read", exc_info=True)

    def log_event(self, topic: str, msg: Any) -> None:
        """Take what a worker tells of its trainers."""
        if topic != PULSES:
            return
        try:
            self.fits.hear(msg)
        except Exception:
            logger.debug("What a trainer tells cannot be read", exc_info=True)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Note that the fits of a client are not told of any more."""
        self.fits.leave(client)


def open_page(scheduler: Any) -> bool:
    """Put the page into a scheduler's dashboard, where it is not there yet."""
    if NAME in scheduler.plugins:
        return True
    try:
        dashboard = find_dashboard(scheduler)
        if dashboard is None:
            return False
        plugin = TrainingPage()
        add_tab(scheduler, dashboard, plugin.fits)
        scheduler.handlers[HANDLER] = plugin.take
        scheduler.add_plugin(plugin, name=NAME, idempotent=True)
        return True
    except Exception:
        logger.debug("The dashboard does not take the page of fits", exc_info=True)
        return False


def find_dashboard(scheduler: Any) -> Any:
    """Return Dask's own bokeh application; None where it has none."""
    if "bokeh" not in sys.modules:
        return None
    applications = getattr(getattr(scheduler, "http_application", None), "applications", ())
    of_bokeh = [app for app in applications if "/status" in getattr(app, "app_paths", ())]
    return of_bokeh[0] if of_bokeh else None


def add_tab(scheduler: Any, dashboard: Any, fits: RecentFits) -> None:
    """Serve the page beside the dashboard's own, and name it in their bar."""
    from tornado.ioloop import IOLoop

    from daskml_dist.dask_internals.dashboard import BokehApplication, template_variables
    from daskml_dist.diagnostics.live.page import show

    def serve(scheduler: Any, extra: dict[str, Any], document: Any) -> None:
        show(fits, extra, document)

    variables = template_variables(scheduler)
    # The scheduler stops it as it closes, like its own.
    application = BokehApplication(
        {f"/{PAGE}": serve, f"/individual-{PAGE}": serve},
        scheduler,
        prefix=dashboard.prefix,
        template_variables=variables,
    )
    application.initialize(IOLoop.current())
    application.start()
    scheduler.http_application.add_application(application)
    pages = variables["pages"]
    if PAGE not in pages:
        pages.insert(pages.index(_BEFORE) + 1 if _BEFORE in pages else len(pages), PAGE)
