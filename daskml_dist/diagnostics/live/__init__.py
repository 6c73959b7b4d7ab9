"""Page of fits in Dask's own dashboard.

Clients send events of their fits to the scheduler (`feed`), and workers report their speed and
traffic each second; a plugin of the scheduler keeps both (`plugin`, `fits`, `heartbeats`), and
draws them as a page of bokeh (`page`). None of this may end or delay a fit: errors are logged.
"""
