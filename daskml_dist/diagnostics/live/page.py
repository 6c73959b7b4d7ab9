"""The page itself, drawn with bokeh; each browser that looks at it has a document of its own."""

from __future__ import annotations

import logging
import math
import time
from datetime import timedelta
from html import escape
from typing import Any

from daskml_dist.diagnostics.live.fits import Fit, Fits, lane_table, mark_table, pass_table

__all__ = ["show"]

logger = logging.getLogger(__name__)

#: Milliseconds between two looks at the fits.
_LOOK = 500
_NEWEST = "newest"
#: Lines over the passes: the title of a figure, and the columns that it shows, with colours.
_FIGURES = (
    ("Mean training loss", {"loss": "#0072b2"}),
    ("Score of validation rows and of eval_set", {"val_score": "#009e73", "eval_score": "#e69f00"}),
    ("Traffic of a pass (MB)", {"mb_pushed": "#0072b2", "mb_pulled": "#e69f00"}),
    ("Staleness (versions)", {"staleness_mean": "#0072b2", "staleness_max": "#d55e00"}),
    ("Rows a second", {"rows_per_second": "#0072b2"}),
)


def show(fits: Fits, extra: dict[str, Any], document: Any) -> None:
    """Fill a document of bokeh's with the page, and keep it up to date.

    Parameters
    ----------
    fits : Fits
    extra : dict
        Variables of the dashboard's template.
    document : bokeh.document.Document
    """
    from bokeh.core.properties import without_property_validation
    from bokeh.layouts import column, gridplot
    from bokeh.models import ColumnDataSource, Div, Select
    from distributed.dashboard.components.scheduler import BOKEH_THEME, env

    sources = {
        name: ColumnDataSource(table(None), name=name)
        for name, table in (("passes", pass_table), ("lanes", lane_table), ("marks", mark_table))
    }
    head, last = (Div(name=name, sizing_mode="stretch_width") for name in ("head", "fits"))
    choice = Select(title="Fit", value=_NEWEST, options=[(_NEWEST, _NEWEST)], name="choice")
    figures = [_lines(title, columns, sources["passes"]) for title, columns in _FIGURES]
    figures.append(_lanes(sources["lanes"], sources["marks"]))
    grid = gridplot(figures, ncols=2, sizing_mode="stretch_width", toolbar_options={"logo": None})
    shown: list[Any] = []

    def look() -> None:
        try:
            kept = fits.all()
            now = [choice.value, *((fit.fit, fit.version) for fit in kept)]
            if shown == now:
                return
            shown[:] = now
            fit = next((f for f in kept if f.fit == choice.value), kept[-1] if kept else None)
            head.text, last.text = _head(fit), _list(kept)
            choice.options = [(_NEWEST, _NEWEST), *((f.fit, _name(f)) for f in reversed(kept))]
            for name, table in sources.items():
                table.data = _TABLES[name](fit)
        except Exception:
            logger.debug("The page of fits is not drawn", exc_info=True)

    look()
    document.add_periodic_callback(without_property_validation(look), _LOOK)
    document.title, document.theme = "Dask: Training", BOKEH_THEME
    document.add_root(column(head, choice, grid, last, sizing_mode="stretch_width"))
    document.template = env.get_template("simple.html")
    document.template_variables.update(extra, active_page="training")


_TABLES = {"passes": pass_table, "lanes": lane_table, "marks": mark_table}


def _lines(title: str, columns: dict[str, str], source: Any) -> Any:
    """A figure with a line for each column over the passes."""
    from bokeh.models import HoverTool
    from bokeh.plotting import figure

    plot = figure(title=title, x_axis_label="pass", height=240, tools="pan,wheel_zoom,reset")
    for name, colour in columns.items():
        named = {"legend_label": name} if len(columns) > 1 else {}
        plot.line("pass", name, source=source, color=colour, line_width=2, **named)
        plot.scatter("pass", name, source=source, color=colour, size=5)  # of a single pass
    tips = [("pass", "@pass"), *((name, f"@{name}") for name in columns)]
    plot.add_tools(HoverTool(tooltips=tips, mode="vline"))
    return plot


def _lanes(lanes: Any, marks: Any) -> Any:
    """A figure of the workers of lanes over time."""
    from bokeh.models import HoverTool
    from bokeh.plotting import figure

    title = "Lanes over time (colour: worker; lines: changes of membership)"
    labels = {"x_axis_label": "seconds", "y_axis_label": "lane"}
    plot = figure(title=title, height=240, tools="pan,wheel_zoom,reset", **labels)
    boxes = plot.quad(
        "left", "right", "top", "bottom", source=lanes, color="colour", line_color="white"
    )
    lines = plot.segment(
        "at", "bottom", "at", "top", source=marks, color="#d00000", line_dash="dashed", line_width=2
    )
    plot.add_tools(
        HoverTool(renderers=[boxes], tooltips=[("lane", "@lane"), ("worker", "@worker")]),
        HoverTool(renderers=[lines], tooltips=[("", "@text"), ("seconds", "@at")]),
    )
    return plot


def _name(fit: Fit) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(fit.began))} {fit.estimator}, {fit.policy}"


def _head(fit: Fit | None) -> str:
    if fit is None:
        return "<b>No fit has been run on this cluster yet.</b>"
    facts = [
        f"<b>{escape(fit.estimator)}</b>",
        f"policy <b>{escape(fit.policy)}</b>",
        f"{fit.n_lanes} lanes, {fit.n_servers} servers",
        f"pass <b>{fit.n_passes}/{fit.max_iter}</b>",
    ]
    if not math.isnan(fit.rows_per_second):
        facts.append(f"{fit.rows_per_second:,.0f} rows/s")
    if fit.state == "running" and not math.isnan(fit.seconds_left):
        facts.append(f"at most {timedelta(seconds=math.ceil(fit.seconds_left))} left")
    facts.append(escape(fit.state))
    return f"<span style='font-size:15px'>{' &nbsp; '.join(facts)}</span>"


def _list(fits: list[Fit]) -> str:
    """A table of the last fits, newest first."""
    titles = ("began", "estimator", "policy", "passes", "loss", "seconds", "changes", "")
    rows = [
        (
            time.strftime("%H:%M:%S", time.localtime(fit.began)),
            fit.estimator,
            fit.policy,
            f"{fit.n_passes}/{fit.max_iter}",
            f"{fit.records[-1]['loss']:.6g}" if fit.records else "",
            f"{fit.at:.3g}",
            str(len(fit.generations)),
            fit.state,
        )
        for fit in reversed(fits)
    ]
    lines = [_line("th", titles), *(_line("td", row) for row in rows)]
    return f"<b>Last fits</b><table style='border-spacing:12px 2px'>{''.join(lines)}</table>"


def _line(tag: str, cells: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
