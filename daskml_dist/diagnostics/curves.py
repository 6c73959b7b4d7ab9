"""Curves of a fit's measures as SVG in HTML, without a plotting library.

The colours and the minimum height of an axis for all views of fits are defined here too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

#: Size of a curve and margin around its line, in pixels.
_WIDTH, _HEIGHT, _MARGIN = 320, 110, 8
#: Largest number of points in a curve; longer histories are thinned.
_MAX_POINTS = 400
#: Minimum height of an axis as a share of its values, so that a loss that changes only in its last
#: digits is drawn as a nearly flat line.
LEAST_SPAN = 1e-3
#: Colours of Okabe and Ito, which colour-blind people can distinguish.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#666666")
#: Measures that have a curve, with colours that suit light and dark pages.
CURVES = {"loss": "#4c8bf5", "val_score": "#2da44e", "eval_score": "#d9822b"}


def make_curves_html(records: Sequence[dict[str, Any]]) -> str:
    """Return an SVG over the passes for each measure that at least one record has."""
    return "".join(
        _draw_curve(records, key, colour)
        for key, colour in CURVES.items()
        if any(_is_number(record.get(key)) for record in records)
    )


def number_or_nan(value: Any) -> float:
    """Return a value of a record as a float; None becomes NaN, which leaves a gap in a line."""
    return math.nan if value is None else float(value)


def _is_number(value: Any) -> bool:
    """Return whether a value of a record can be drawn."""
    return value is not None and math.isfinite(value)


def _draw_curve(records: Sequence[dict[str, Any]], key: str, colour: str) -> str:
    """Return the SVG of one measure over the passes."""
    points = [(r["pass"], r[key]) for r in records if _is_number(r.get(key))]
    # Keep every `step`-th point, and always the last one.
    if len(points) > _MAX_POINTS:
        step = -(-len(points) // _MAX_POINTS)
        points = [*points[:-1:step], points[-1]]
    low, high = (find(value for _, value in points) for find in (min, max))
    x = _scale_to_axis([number for number, _ in points], _WIDTH)
    least_span = LEAST_SPAN * max(abs(low), abs(high))
    # SVG measures y from the top.
    y = [
        _HEIGHT - height
        for height in _scale_to_axis([value for _, value in points], _HEIGHT, least_span)
    ]
    corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    first, last, low_text, high_text = (
        f"{value:.6g}" for value in (points[0][1], points[-1][1], low, high)
    )
    change = f"{first} to {last} ({low_text} to {high_text})"
    caption = escape(f"{key} {change if low_text != high_text else last}")
    return (
        f'<figure style="margin:0"><svg width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{caption}"><title>{caption}</title><polyline points="{corners}" '
        f'fill="none" stroke="{colour}" stroke-width="1.5"/><circle cx="{x[-1]:.1f}" '
        f'cy="{y[-1]:.1f}" r="2.5" fill="{colour}"/></svg>'
        f'<figcaption style="font-size:smaller">{caption}</figcaption></figure>'
    )


def _scale_to_axis(values: Sequence[float], size: int, least: float = 0.0) -> list[float]:
    """Return coordinates of values between the margins, on an axis that spans at least `least`."""
    low, high = min(values), max(values)
    span = max(high - low, least)
    # A single point, or only zeros: draw them in the middle.
    if span == 0:
        return [size / 2 for _ in values]
    centre = low + (high - low) / 2
    return [size / 2 + (size - 2 * _MARGIN) * (v - centre) / span for v in values]
