"""Faults in mid-fit: workers that die, stop, leave, join, get slow, or cannot be reached."""
