"""The page of fits in Dask's own dashboard: told by clients, kept by a plugin."""
