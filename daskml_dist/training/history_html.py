"""A fit's history as HTML, for notebooks: its curve and its facts, with no other library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

__all__ = ["history_html"]

#: Size of a curve in pixels, and the room around its lines.
_WIDTH, _HEIGHT, _MARGIN = 320, 110, 8
#: Points of a curve at most: of more, a part is left out.
_POINTS = 400
#: Measures that have a curve, with their colours, which suit light and dark pages.
_CURVES = {"loss": "#4c8bf5", "val_score": "#2da44e", "eval_score": "#d9822b"}


Records = Sequence[dict[str, Any]]


def history_html(records: Records, extra: dict[str, Any], interrupted: bool) -> str:
    """Curves of a history's measures over its passes, and a table of its facts.

    Parameters
    ----------
    records, extra, interrupted
        Those of :class:`daskml_dist.training.history.History`.
    """
    curves = [
        _curve(records, key, colour)
        for key, colour in _CURVES.items()
        if any(_is_number(record.get(key)) for record in records)
    ]
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">'
        f"{escape(text)}</td></tr>"
        for name, text in _facts(records, extra, interrupted)
    )
    return (
        '<div class="daskml-history" style="display:flex;flex-wrap:wrap;gap:1em;'
        f'align-items:flex-start">{"".join(curves)}<table>{rows}</table></div>'
    )


def _is_number(value: Any) -> bool:
    return value is not None and math.isfinite(value)


def _facts(records: Records, extra: dict[str, Any], interrupted: bool) -> list[tuple[str, str]]:
    """Names and words of what there is to say of a fit."""
    seconds, rows = (sum(record[key] for record in records) for key in ("seconds", "rows"))
    passes = f"{len(records)}, in {seconds:.3g} s" + ", interrupted" * interrupted
    facts = [("passes", passes)]
    if seconds > 0:
        facts.append(("rows a second", f"{rows / seconds:,.0f}"))
    if sent := sum(record["bytes_pushed"] + record["bytes_pulled"] for record in records):
        facts.append(("traffic", f"{sent / 1e6:,.1f} MB"))
    names = {"policy": "policy", "n_lanes": "lanes", "n_servers": "servers"}
    facts += [(names[key], str(extra[key])) for key in names if extra.get(key)]
    if lost := extra.get("lost_rows"):
        facts.append(("rows lost for good", f"{lost:,}"))
    for event in extra.get("generations", ()):
        facts.append((f"generation {event['generation']}", str(event["reason"])))
    return facts


def _curve(records: Records, key: str, colour: str) -> str:
    """A measure over the passes, as an SVG."""
    points = [(r["pass"], r[key]) for r in records if _is_number(r.get(key))]
    if len(points) > _POINTS:
        step = -(-len(points) // _POINTS)
        points = [*points[:-1:step], points[-1]]
    low, high = (find(value for _, value in points) for find in (min, max))
    x = _scale([number for number, _ in points], _WIDTH)
    y = [_HEIGHT - at for at in _scale([value for _, value in points], _HEIGHT)]
    corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    words = escape(f"{key} {points[0][1]:.6g} to {points[-1][1]:.6g} ({low:.6g} to {high:.6g})")
    return (
        f'<figure style="margin:0"><svg width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{words}"><title>{words}</title><polyline points="{corners}" '
        f'fill="none" stroke="{colour}" stroke-width="1.5"/><circle cx="{x[-1]:.1f}" '
        f'cy="{y[-1]:.1f}" r="2.5" fill="{colour}"/></svg>'
        f'<figcaption style="font-size:smaller">{words}</figcaption></figure>'
    )


def _scale(values: Sequence[float], size: int) -> list[float]:
    """Places of values between the margins; in the middle where they are all the same."""
    low, high = min(values), max(values)
    if high == low:
        return [size / 2 for _ in values]
    return [_MARGIN + (size - 2 * _MARGIN) * (v - low) / (high - low) for v in values]
