"""Faults during fits: workers that die, stop, leave, join, get slow, or become unreachable."""
