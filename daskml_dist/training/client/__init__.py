"""Client's part of a fit on a cluster: placement, launch, supervision, and new generations."""

import daskml_dist.data.device_wire  # noqa: F401  (registers how Dask serializes blocks)
