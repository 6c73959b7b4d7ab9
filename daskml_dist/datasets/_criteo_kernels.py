"""Compiled parser of Criteo's text format. Importing it loads numba, so import it at first use."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskml_dist.backends.compiled import compiled_entry

#: Value of each byte as a hexadecimal digit; 255 for other bytes.
HEX_VALUES = np.full(256, 255, np.uint8)
for _number, _digit in enumerate("0123456789abcdef"):
    HEX_VALUES[ord(_digit)] = HEX_VALUES[ord(_digit.upper())] = _number

#: Bytes with a special meaning: ends of lines and columns, the sign, and the digit 0.
_LINE_FEED, _CARRIAGE_RETURN, _TAB, _MINUS, _ZERO = 10, 13, 9, 45, 48
#: Largest number of digits of an integer that always fits into int64, and of a 32-bit id.
_MAX_DIGITS, _MAX_HEX_DIGITS = 18, 8


@compiled_entry()
def parse_lines(
    text: Any, hex_values: Any, labels: Any, numeric_values: Any, ids: Any, are_missing: Any
) -> tuple[int, int, int]:
    """Parse lines of text to columns; return the rows, and line and column of a mistake.

    The line number counts empty lines, which are not rows; the column is -1 if there is no mistake.
    """
    n, position, row, line = len(text), 0, 0, 0
    n_numbers, n_ids = len(numeric_values), len(ids)
    while position < n:
        # Empty lines are counted, but are not rows.
        if text[position] == _LINE_FEED:
            position, line = position + 1, line + 1
            continue
        # Column 0: the label, 0 or 1.
        labels[row] = text[position] - _ZERO
        if text[position] != _ZERO and text[position] != _ZERO + 1:
            return row, line, 0
        position += 1
        # Then the counts: decimal integers, some of them negative; empty means missing.
        for j in range(n_numbers):
            if position >= n or text[position] != _TAB:
                return row, line, j
            position += 1
            sign = 1.0
            if position < n and text[position] == _MINUS:
                sign = -1.0
                position += 1
            value, first = np.int64(0), position
            while position < n and _ZERO <= text[position] < _ZERO + 10:
                value = value * 10 + (np.int64(text[position]) - _ZERO)
                position += 1
            if position - first > _MAX_DIGITS or (position == first and sign < 0):
                return row, line, 1 + j
            numeric_values[j, row] = sign * value if position > first else np.nan
        # Then the ids: up to eight hexadecimal digits; empty means missing.
        for j in range(n_ids):
            if position >= n or text[position] != _TAB:
                return row, line, n_numbers + j
            position += 1
            code, first = np.uint32(0), position
            while position < n and hex_values[text[position]] != 255:
                code = np.uint32((code << np.uint32(4)) | np.uint32(hex_values[text[position]]))
                position += 1
            if position - first > _MAX_HEX_DIGITS:
                return row, line, 1 + n_numbers + j
            ids[j, row] = code
            are_missing[j, row] = position == first
        # The line must end here, with or without a carriage return, or with the file.
        if position < n and text[position] == _CARRIAGE_RETURN:
            position += 1
        if position < n and text[position] != _LINE_FEED:
            return row, line, n_numbers + n_ids
        position, row, line = position + 1, row + 1, line + 1
    return row, line, -1
