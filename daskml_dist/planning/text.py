"""Seconds and bytes in words."""

from __future__ import annotations

__all__ = ["bytes_text", "range_text", "seconds_text"]


def range_text(seconds: tuple[float, float]) -> str:
    """A range of seconds in words."""
    return " to ".join(map(seconds_text, seconds))


def seconds_text(seconds: float) -> str:
    """Two digits, in a unit that suits."""
    for unit, scale in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        # Ninety seconds read better than one and a half minutes.
        if seconds >= scale * (2 if scale > 1 else 1):
            return f"{_digits(seconds / scale)} {unit}"
    return f"{_digits(seconds * 1e6)} µs"


def bytes_text(size: float) -> str:
    """Three digits, in a decimal unit that suits."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
