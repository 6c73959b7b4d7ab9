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
    text: Any, hex_values: Any, labels: Any, numbers: Any, ids: Any, are_missing: Any
) -> tuple[int, int, int]:
    """Parse lines of text to columns; return the rows, and line and column of a mistake.

    The line number counts empty lines, which are not rows; the column is -1 if there is no mistake.
    """
    n, at, row, line = len(text), 0, 0, 0
    n_numbers, n_ids = len(numbers), len(ids)
    while at < n:
        # Empty lines are counted, but are not rows.
        if text[at] == _LINE_FEED:
            at, line = at + 1, line + 1
            continue
        # Column 0: the label, 0 or 1.
        labels[row] = text[at] - _ZERO
        if text[at] != _ZERO and text[at] != _ZERO + 1:
            return row, line, 0
        at += 1
        # Then the counts: decimal integers, some of them negative; empty means missing.
        for j in range(n_numbers):
            if at >= n or text[at] != _TAB:
                return row, line, j
            at += 1
            sign = 1.0
            if at < n and text[at] == _MINUS:
                sign = -1.0
                at += 1
            value, first = np.int64(0), at
            while at < n and _ZERO <= text[at] < _ZERO + 10:
                value = value * 10 + (np.int64(text[at]) - _ZERO)
                at += 1
            if at - first > _MAX_DIGITS or (at == first and sign < 0):
                return row, line, 1 + j
            numbers[j, row] = sign * value if at > first else np.nan
        # Then the ids: up to eight hexadecimal digits; empty means missing.
        for j in range(n_ids):
            if at >= n or text[at] != _TAB:
                return row, line, n_numbers + j
            at += 1
            code, first = np.uint32(0), at
            while at < n and hex_values[text[at]] != 255:
                code = np.uint32((code << np.uint32(4)) | np.uint32(hex_values[text[at]]))
                at += 1
            if at - first > _MAX_HEX_DIGITS:
                return row, line, 1 + n_numbers + j
            ids[j, row] = code
            are_missing[j, row] = at == first
        # The line must end here, with or without a carriage return, or with the file.
        if at < n and text[at] == _CARRIAGE_RETURN:
            at += 1
        if at < n and text[at] != _LINE_FEED:
            return row, line, n_numbers + n_ids
        at, row, line = at + 1, row + 1, line + 1
    return row, line, -1
