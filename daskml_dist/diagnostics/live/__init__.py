"""Page about fits in Dask's own dashboard.

Clients send events of their fits to the scheduler (`feed`), and workers report their speed and
traffic every second. A scheduler plugin stores both (`plugin`, `fits`, `heartbeats`) and draws them
as a page with bokeh (`page`). None of this may end or delay a fit: errors are logged.
"""
