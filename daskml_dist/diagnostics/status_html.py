"""Status of a fit as HTML, for notebooks: where it is, how it goes, and its curves so far."""

from __future__ import annotations

from html import escape

from daskml_dist.diagnostics.curves import curves_html
from daskml_dist.diagnostics.status import Status

__all__ = ["Snapshot", "status_html", "summary_html"]

_WIDTH, _HEIGHT, _COLOUR = 160, 10, "#4c8bf5"


class Snapshot:
    """Picture of a moment in a notebook, and its text where there is no HTML.

    Parameters
    ----------
    text, html : str
    """

    def __init__(self, text: str, html: str) -> None:
        self._text, self._html = text, html

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def status_html(status: Status) -> str:
    """Position, a bar, numbers and curves of a fit that goes on."""
    line = f"<b>{escape(status.position())}</b> {_bar(status.share)} {escape(status.metrics())}"
    title = f"<div>{escape(status.title)}</div>" if status.title else ""
    return _framed(f"{title}<div>{line}</div>", status)


def summary_html(status: Status) -> str:
    """Summary and curves of a fit that has ended."""
    return _framed(f"<div>{escape(status.summary())}</div>", status)


def _framed(text: str, status: Status) -> str:
    curves = curves_html(status.records)
    return (
        f'<div class="daskml-status">{text}'
        f'<div style="display:flex;flex-wrap:wrap;gap:1em">{curves}</div></div>'
    )


def _bar(share: float | None) -> str:
    """A bar, filled as far as the fit is; nothing where nobody knows."""
    if share is None:
        return ""
    done = _WIDTH * min(max(share, 0.0), 1.0)
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="progressbar" '
        f'aria-valuenow="{100 * done / _WIDTH:.0f}"><rect width="{_WIDTH}" height="{_HEIGHT}" '
        f'rx="3" fill="#8884"/><rect width="{done:.1f}" height="{_HEIGHT}" rx="3" '
        f'fill="{_COLOUR}"/></svg>'
    )
