"""Parts of distributed's dashboard, to which the package adds a page; needs bokeh."""

from __future__ import annotations

from distributed.dashboard.components.scheduler import BOKEH_THEME, env
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables

__all__ = ["BOKEH_THEME", "BokehApplication", "env", "template_variables"]
