"""Views of fits for their users: live displays, the page in Dask's dashboard, and plots."""
