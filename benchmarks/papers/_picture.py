"""Shared code of the papers' pictures: size, colours, labels. Needs matplotlib."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["BLUE", "COLOURS", "GREEN", "GREY", "ORANGE", "label", "shades", "small_picture"]

#: Colours that most people with colour blindness can distinguish (Okabe and Ito 2008).
BLUE, ORANGE, GREEN, RED, SKY, GREY = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#999999",
)  # fmt: skip
COLOURS = BLUE, ORANGE, GREEN, RED, SKY, GREY


@contextlib.contextmanager
def small_picture(path: Path, panels: int) -> Iterator[list[Any]]:
    """Open panels side by side, and save them as a small PNG at the end.

    Parameters
    ----------
    path : Path
    panels : int

    Yields
    ------
    list of matplotlib Axes
    """
    # Without pyplot: no window system is needed, and no global state is left.
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(4.1 * panels, 3.3), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0].tolist()
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    yield axes
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    # A small palette is enough, and the file has a third of the bytes.
    Image.open(drawn).convert("RGB").quantize(48).save(path, optimize=True)


def label(ax: Any, title: str, x: str, y: str, legend: str | None = "") -> None:
    """Name a panel and its axes; `legend` is the legend's title, None for no legend."""
    ax.set_title(title, fontsize=9)
    ax.set_xlabel(x, fontsize=8)
    ax.set_ylabel(y, fontsize=8)
    if legend is not None:
        ax.legend(title=legend or None, fontsize=7, title_fontsize=7, frameon=False)


def shades(count: int) -> list[Any]:
    """Return colours for an ordered series, from light to dark."""
    from matplotlib import colormaps

    return [colormaps["viridis_r"](0.15 + 0.8 * i / max(count - 1, 1)) for i in range(count)]
