"""Page of the dashboard, drawn with bokeh; each browser has its own document.

`show` creates the figures once, each with a data source. Twice per second the page checks whether a
fit has had an event, and only then replaces the tables of the sources, which bokeh sends to the
browser.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from html import escape
from typing import Any

from daskml_dist.diagnostics.live.fits import (
    LEVELS,
    Fit,
    RecentFits,
    assign_colours,
    make_lane_table,
    make_mark_table,
    make_pass_table,
    make_rung_table,
    make_staleness_table,
)
from daskml_dist.diagnostics.live.heartbeats import (
    MAX_SPEED_LANES,
    TRANSPORTS,
    make_load_table,
    make_speed_table,
)

logger = logging.getLogger(__name__)

#: Milliseconds between two updates of the page.
_UPDATE_INTERVAL = 500
#: Value of the selection that always shows the newest fit, instead of one by its id.
_NEWEST = "newest"
#: Figures over passes: title, and the columns to draw with their colours.
_FIGURES = (
    ("Mean training loss", {"loss": "#0072b2"}),
    ("Score on validation rows and eval_set", {"val_score": "#009e73", "eval_score": "#e69f00"}),
    ("Traffic per pass (MB)", {"mb_pushed": "#0072b2", "mb_pulled": "#e69f00"}),
    ("Staleness (versions)", {"staleness_mean": "#0072b2", "staleness_max": "#d55e00"}),
    ("Rows a second", {"rows_per_second": "#0072b2"}),
)
#: Texts in figures without values, keyed by the figure's first column.
_EMPTY = {
    "loss": "This fit records no loss.",
    "val_score": "No score recorded: set early_stopping=True, or pass fit(..., eval_set=(X, y)).",
    "mb_pushed": "This fit does not record traffic per pass.",
    "staleness_mean": "This fit applies no stale gradients.",
    "rows_per_second": "No pass has ended yet.",
}
#: Position of the staleness bars among the figures: after the mean and maximum of staleness.
_STALENESS_POSITION = 4
#: Figures over seconds, in the same form.
_LOADS = (
    (
        "Traffic of the trainers (MB/s)",
        dict(zip(TRANSPORTS.values(), ("#0072b2", "#e69f00", "#009e73"), strict=True)),
    ),
    ("Training rows", {"rows_in_memory": "#0072b2", "rows_streamed": "#e69f00"}),
    ("Memory of the workers (GB)", {"gb_in_memory": "#0072b2", "gb_spilled": "#d55e00"}),
)

#: Style of the marks at changes of membership.
_MARK = {"color": "#d00000", "line_dash": "dashed", "line_width": 2}


def show(fits: RecentFits, extra: dict[str, Any], document: Any) -> None:
    """Fill a bokeh document with the page of `fits`, and update it periodically.

    `extra` has Dask's variables for its page template.
    """
    from bokeh.core.properties import without_property_validation
    from bokeh.layouts import column, gridplot
    from bokeh.models import ColumnDataSource, Div, Select

    from daskml_dist.dask_internals.dashboard import BOKEH_THEME, env

    # Empty tables already have the columns that the figures use.
    sources = {name: ColumnDataSource(table(None), name=name) for name, table in _TABLES.items()}
    head, last = (Div(name=name, sizing_mode="stretch_width") for name in ("head", "fits"))
    choice = Select(title="Fit", value=_NEWEST, options=[(_NEWEST, _NEWEST)], name="choice")
    figures = [_draw_lines(title, columns, sources["passes"]) for title, columns in _FIGURES]
    empty_labels = {
        next(iter(columns)): _add_empty_label(plot, next(iter(columns)))
        for plot, (_, columns) in zip(figures, _FIGURES, strict=True)
    }
    staleness = _draw_staleness(sources["staleness"])
    figures.insert(_STALENESS_POSITION, staleness)
    # Changes of membership are marked in all figures over seconds, since they explain sudden
    # changes.
    over_time = [_draw_speeds(sources["speeds"])]
    over_time += [
        _draw_lines(title, columns, sources["load"], "seconds") for title, columns in _LOADS
    ]
    for plot in over_time:
        plot.vspan("at", source=sources["marks"], **_MARK)
    figures += [_draw_lanes(sources["lanes"], sources["marks"]), *over_time]
    rungs = _draw_rungs(sources["rungs"])
    grid = gridplot(figures, ncols=2, sizing_mode="stretch_width", toolbar_options={"logo": None})
    # The selection, and the version of each fit, that the page shows now.
    shown: list[Any] = []

    def update() -> None:
        try:
            kept = fits.all()
            state = [choice.value, *((fit.fit, fit.version) for fit in kept)]
            if shown == state:
                return
            shown[:] = state
            fit = next((f for f in kept if f.fit == choice.value), kept[-1] if kept else None)
            head.text, last.text = _make_header(fit), _make_fit_list(kept)
            choice.options = [
                (_NEWEST, _NEWEST),
                *((f.fit, _format_fit_name(f)) for f in reversed(kept)),
            ]
            # Fits have lanes; searches, which report rungs, have none.
            grid.visible = fit is None or fit.n_lanes > 0
            rungs.visible = fit is not None and fit.n_lanes == 0
            rungs_of_fit = () if fit is None else fit.rungs
            rungs.xaxis[0].ticker.ticks = sorted({resource for _, _, resource, _ in rungs_of_fit})
            # Replace all columns of a source together: columns of different lengths would be an
            # error.
            for name, table in sources.items():
                table.data = _TABLES[name](fit)
            for _, columns in _FIGURES:
                empty_labels[next(iter(columns))].visible = _is_empty(
                    sources["passes"].data, columns
                )
            staleness.x_range.factors = list(sources["staleness"].data["versions"])
        except Exception:
            logger.debug("The page of fits could not be drawn", exc_info=True)

    # bokeh would validate every value of each property on every change; these tables are trusted.
    update()
    document.add_periodic_callback(without_property_validation(update), _UPDATE_INTERVAL)
    document.title, document.theme = "Dask: Training", BOKEH_THEME
    document.add_root(column(head, choice, grid, rungs, last, sizing_mode="stretch_width"))
    document.template = env.get_template("simple.html")
    document.template_variables.update(extra, active_page="training")


def _is_empty(table: Mapping[str, Sequence[float]], columns: Iterable[str]) -> bool:
    """Return whether a figure of some columns shows no value although passes are recorded."""
    return bool(table["pass"]) and all(math.isnan(v) for name in columns for v in table[name])


def _add_empty_label(plot: Any, column: str) -> Any:
    """Add a label to a figure, to be shown only while the figure has no values."""
    from bokeh.models import Label

    place = {"x": 10, "y": 90, "x_units": "screen", "y_units": "screen"}
    label = Label(text=_EMPTY[column], text_font_size="12px", visible=False, **place)
    plot.add_layout(label)
    return label


#: Functions that make the tables of a fit, by the name of the data source.
_TABLES: dict[str, Callable[[Fit | None], dict[str, list[Any]]]] = {
    "passes": make_pass_table, "lanes": make_lane_table, "marks": make_mark_table,
    "rungs": make_rung_table, "staleness": make_staleness_table,
    "speeds": lambda fit: make_speed_table(fit.heartbeats if fit else None, assign_colours(fit)),
    "load": lambda fit: make_load_table(fit.heartbeats if fit else None),
}  # fmt: skip


def _draw_lines(title: str, columns: dict[str, str], source: Any, x_column: str = "pass") -> Any:
    """Return a figure with a line for each column over the passes, or over the seconds."""
    from bokeh.models import HoverTool, NumeralTickFormatter
    from bokeh.plotting import figure

    plot = figure(title=title, x_axis_label=x_column, height=240, tools="pan,wheel_zoom,reset")
    for name, colour in columns.items():
        named = {"legend_label": name.replace("_", " ")} if len(columns) > 1 else {}
        plot.line(x_column, name, source=source, color=colour, line_width=2, **named)
        # Dots too, since a line of a single point is invisible.
        plot.scatter(x_column, name, source=source, color=colour, size=5, **named)
        # Invisible points that the axis must include: see `make_pass_table`.
        for edge in ("low", "high") if name in LEVELS else ():
            plot.scatter(x_column, f"{name}_{edge}", source=source, alpha=0.0, size=1)
    if len(columns) > 1:
        legend = plot.legend[0]
        legend.orientation, legend.label_text_font_size, legend.border_line_alpha = (
            "horizontal", "9pt", 0.0,
        )  # fmt: skip
        legend.padding = legend.margin = 0
        plot.add_layout(legend, "above")
    # Losses and scores keep all digits; counts are shortened, such as 1.2k and 3.4m.
    if "loss" not in columns and "val_score" not in columns:
        plot.yaxis.formatter = NumeralTickFormatter(format="0.[000]a")
    tips = [(x_column, f"@{x_column}"), *((name.replace("_", " "), f"@{name}") for name in columns)]
    plot.add_tools(HoverTool(tooltips=tips, mode="vline"))
    return plot


def _draw_staleness(source: Any) -> Any:
    """Return a figure of the staleness of applied gradients."""
    from bokeh.models import HoverTool, NumeralTickFormatter
    from bokeh.plotting import figure

    title = "Applied gradients by staleness (versions)"
    plot = figure(title=title, x_range=[], height=240, tools="reset")
    plot.vbar("versions", top="count", width=0.9, source=source, color="#0072b2")
    plot.y_range.start, plot.yaxis.formatter = 0, NumeralTickFormatter(format="0.[000]a")
    plot.add_tools(HoverTool(tooltips=[("versions", "@versions"), ("gradients", "@count")]))
    return plot


def _draw_lanes(lanes: Any, marks: Any) -> Any:
    """Return a figure of the workers of lanes over time."""
    from bokeh.models import HoverTool
    from bokeh.plotting import figure

    title = "Lanes over time (colour: worker; lines: membership changes)"
    labels = {"x_axis_label": "seconds", "y_axis_label": "lane"}
    plot = figure(title=title, height=240, tools="pan,wheel_zoom,reset", **labels)
    boxes = plot.quad(
        "left", "right", "top", "bottom", source=lanes, color="colour", line_color="white"
    )
    lines = plot.segment("at", "bottom", "at", "top", source=marks, **_MARK)
    plot.add_tools(
        HoverTool(renderers=[boxes], tooltips=[("lane", "@lane"), ("worker", "@worker")]),
        HoverTool(renderers=[lines], tooltips=[("", "@text"), ("seconds", "@at")]),
    )
    return plot


def _draw_speeds(source: Any) -> Any:
    """Return a figure of the steps per second of each lane."""
    from bokeh.models import HoverTool
    from bokeh.plotting import figure

    title = f"Steps per second of each lane (colour: worker; at most {MAX_SPEED_LANES} lanes)"
    plot = figure(title=title, x_axis_label="seconds", height=240, tools="pan,wheel_zoom,reset")
    plot.y_range.start = 0
    drawn = plot.multi_line(
        "seconds", "speed", source=source, color="colour", line_width=2, line_alpha=0.8
    )
    tips = [("lane", "@lane"), ("worker", "@worker"), ("steps a second", "$y{0}")]
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=tips, line_policy="nearest"))
    return plot


def _draw_rungs(source: Any) -> Any:
    """Return a figure of the scores of a search's candidates from rung to rung."""
    from bokeh.models import BasicTickFormatter, FixedTicker, HoverTool
    from bokeh.plotting import figure

    plot = figure(
        title="Candidates by rung (dot: where a candidate ended)",
        x_axis_label="passes, or another resource", y_axis_label="mean score of held-out rows",
        x_axis_type="log", height=420, tools="pan,wheel_zoom,reset", sizing_mode="stretch_width",
    )  # fmt: skip
    # The ticks are set together with the data: one at each rung.
    plot.xaxis[0].ticker, plot.xaxis[0].formatter = FixedTicker(ticks=[]), BasicTickFormatter()
    plot.multi_line("resource", "score", source=source, color="colour", line_alpha=0.5)
    dots = plot.scatter(
        "last", "came_to", source=source, color="colour", size=7, legend_field="name"
    )
    plot.add_layout(plot.legend[0], "right")
    plot.legend.border_line_alpha = 0.0
    names = ("candidate", "bracket", "last", "came_to")
    tips = [(name.replace("_", " "), f"@{name}") for name in names]
    plot.add_tools(HoverTool(renderers=[dots], tooltips=tips))
    return plot


def _format_fit_name(fit: Fit) -> str:
    """Return the start time, the estimator and the policy, for the list of fits."""
    began = time.strftime("%H:%M:%S", time.localtime(fit.began))
    return ", ".join([f"{began} {fit.estimator}", *([fit.policy] if fit.policy else [])])


def _make_header(fit: Fit | None) -> str:
    """Return the header of the page as HTML: the fit, its progress and its numbers."""
    if fit is None:
        return "<b>No fit has been run on this cluster yet.</b>"
    facts = [f"<b>{escape(fit.estimator)}</b>"]
    if fit.n_lanes:
        facts += [
            f"policy <b>{escape(fit.policy)}</b>",
            f"lanes: {fit.n_lanes}, servers: {fit.n_servers}",
            f"pass <b>{fit.passes}</b>",
        ]
    if not math.isnan(fit.rows_per_second):
        facts.append(f"{fit.rows_per_second:,.0f} rows/s")
    if fit.state == "running" and not math.isnan(fit.seconds_left):
        facts.append(f"at most {timedelta(seconds=math.ceil(fit.seconds_left))} left")
    running = fit.state == "running" and fit.phase
    facts.append(escape(fit.phase if running else fit.state))
    return f"<span style='font-size:15px'>{' &nbsp; '.join(facts)}</span>"


def _make_fit_list(fits: list[Fit]) -> str:
    """Return a table of the last fits, newest first."""
    titles = ("began", "estimator", "policy", "passes", "loss", "seconds", "changes", "")
    rows = [
        (
            time.strftime("%H:%M:%S", time.localtime(fit.began)),
            fit.estimator,
            fit.policy,
            fit.passes if fit.n_lanes else "",
            f"{fit.records[-1]['loss']:.6g}" if fit.records else "",
            f"{fit.elapsed_seconds:.3g}",
            str(len(fit.generations)),
            fit.state,
        )
        for fit in reversed(fits)
    ]
    lines = [_make_table_row("th", titles), *(_make_table_row("td", row) for row in rows)]
    return f"<b>Recent fits</b><table style='border-spacing:12px 2px'>{''.join(lines)}</table>"


def _make_table_row(tag: str, cells: tuple[str, ...]) -> str:
    """Return a row of an HTML table, of cells "th" or "td"."""
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"
