"""Parts of estimators that fit other estimators: ensembles, calibration, wrappers.

`members` finds and encodes lazy labels, fits other estimators to Dask collections and predicts out
of fold; `block_predictions` predicts block by block.
"""
