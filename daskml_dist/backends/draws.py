"""Draws of a lane for its batches, for code that reads rows where they lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Draw"]

#: A batch's runs of neighbouring rows, by block: its number, their first rows, and their lengths;
#: None where each is one row.
Draw = Sequence[tuple[int, NDArray[np.intp], NDArray[np.intp] | None]]
