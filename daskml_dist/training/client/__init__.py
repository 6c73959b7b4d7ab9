"""The client's part of a fit on a cluster: it places, launches, watches, and begins generations."""

import daskml_dist.data.device_wire  # noqa: F401  (Dask asks it how blocks travel)
