"""Undocumented parts of Dask and distributed, and the functions that are built on them.

No other room imports such a name; `tests/dask_internals/test_canaries.py` checks that, and holds a
test for each name, which says what of the package stops working when a release of Dask moves it.
"""
