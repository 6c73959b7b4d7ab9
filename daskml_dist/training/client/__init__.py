"""The client's part of a fit on a cluster: it places, launches, watches, and begins generations."""
