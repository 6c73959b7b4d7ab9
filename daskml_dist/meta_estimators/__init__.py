"""Parts of estimators that fit other estimators: ensembles, calibration, wrappers.

`members` fits others to Dask collections and predicts out of fold; `block_predictions` predicts
block by block; `lazy_labels` finds and encodes the classes of lazy labels.
"""
