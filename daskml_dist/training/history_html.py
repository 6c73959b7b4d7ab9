"""A fit's history as HTML, for notebooks: its curve and its facts, with no other library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from daskml_dist.diagnostics.curves import curves_html

__all__ = ["history_html"]

Records = Sequence[dict[str, Any]]


def history_html(records: Records, extra: dict[str, Any], interrupted: bool) -> str:
    """Curves of a history's measures over its passes, and a table of its facts.

    Parameters
    ----------
    records, extra, interrupted
        Those of :class:`daskml_dist.training.history.History`.
    """
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">'
        f"{escape(text)}</td></tr>"
        for name, text in _facts(records, extra, interrupted)
    )
    return (
        '<div class="daskml-history" style="display:flex;flex-wrap:wrap;gap:1em;'
        f'align-items:flex-start">{curves_html(records)}<table>{rows}</table></div>'
    )


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
