"""Undocumented parts of Dask and distributed, and the functions that are built on them.

No other package of daskml_dist imports such a name: `tests/dask_internals/test_canaries.py` checks
this. It also has a test for each name, which states what stops working if a release of Dask moves
it.
"""
