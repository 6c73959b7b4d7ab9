"""Importing this module excludes all existing objects from later garbage collections.

The process from which workers are forked imports it last: otherwise each worker would repeatedly
traverse all modules, and copy their memory pages while doing so.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
