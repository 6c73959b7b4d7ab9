"""Scheduler plugin that keeps the recent fits and adds their page to Dask's dashboard.

`open_page` runs on the scheduler when the first client reports a fit. A scheduler has the page only
if it runs Dask's own dashboard (bokeh) and has this package installed.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from distributed import SchedulerPlugin

from daskml_dist.diagnostics.live.fits import HANDLER, RecentFits
from daskml_dist.diagnostics.live.heartbeats import HEARTBEAT_TOPIC

logger = logging.getLogger(__name__)

#: Name of the plugin on the scheduler, and of the page in the dashboard.
NAME, PAGE = "daskml-dist-training", "training"
#: Page of the dashboard after which the tab is placed.
_PRECEDING_PAGE = "system"


class TrainingPage(SchedulerPlugin):
    """Plugin that keeps the recent fits of a cluster.

    Attributes
    ----------
    fits : RecentFits
    """

    name = NAME
    idempotent = True

    def __init__(self) -> None:
        self.fits = RecentFits()

    def take(self, events: list[dict[str, Any]]) -> None:
        """Apply events of a client; errors are logged, since they must not break the scheduler."""
        try:
            self.fits.take(events)
        # The client may have another version of the package, so any error is possible.
        except Exception:
            logger.debug("A progress report of a fit cannot be read", exc_info=True)

    def log_event(self, topic: str, msg: Any) -> None:
        """Apply a worker's report; errors are logged, since they must not break the scheduler."""
        if topic != HEARTBEAT_TOPIC:
            return
        try:
            self.fits.hear(msg)
        except Exception:
            logger.debug("A progress report of a trainer cannot be read", exc_info=True)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Mark the running fits of a client that has left."""
        self.fits.leave(client)


def open_page(scheduler: Any) -> bool:
    """Add the page to a scheduler's dashboard if it is missing; return whether it is there."""
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
        logger.debug("The page of fits could not be added to the dashboard", exc_info=True)
        return False


def find_dashboard(scheduler: Any) -> Any:
    """Return Dask's own bokeh application; None for a scheduler without dashboard."""
    # Dask's own application is the one that serves /status.
    if "bokeh" not in sys.modules:
        return None
    applications = getattr(getattr(scheduler, "http_application", None), "applications", ())
    of_bokeh = [app for app in applications if "/status" in getattr(app, "app_paths", ())]
    return of_bokeh[0] if of_bokeh else None


def add_tab(scheduler: Any, dashboard: Any, fits: RecentFits) -> None:
    """Serve the page, and add its tab to the dashboard's navigation bar."""
    from tornado.ioloop import IOLoop

    from daskml_dist.dask_internals.dashboard import BokehApplication, template_variables
    from daskml_dist.diagnostics.live.page import show

    def serve(scheduler: Any, extra: dict[str, Any], document: Any) -> None:
        show(fits, extra, document)

    variables = template_variables(scheduler)
    # A separate bokeh application beside Dask's own, which has already started. Registered among
    # the scheduler's applications, it is stopped together with them.
    application = BokehApplication(
        {f"/{PAGE}": serve, f"/individual-{PAGE}": serve},
        scheduler,
        prefix=dashboard.prefix,
        template_variables=variables,
    )
    application.initialize(IOLoop.current())
    application.start()
    scheduler.http_application.add_application(application)
    # Dask's own pages draw their navigation bar from this list, so it is changed in place.
    pages = variables["pages"]
    if PAGE not in pages:
        pages.insert(
            pages.index(_PRECEDING_PAGE) + 1 if _PRECEDING_PAGE in pages else len(pages), PAGE
        )
