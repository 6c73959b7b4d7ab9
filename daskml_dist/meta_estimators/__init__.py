"""Shared code of estimators that fit other estimators: ensembles, calibration, wrappers.

`members` fits other estimators to Dask collections, and finds and encodes lazy labels;
`block_predictions` predicts block by block.
"""
