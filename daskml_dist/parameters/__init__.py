"""Parameters that estimators share: their checks, and how a fit runs.

`run` has `Run`, the parameter that describes how a fit is distributed over a cluster. `checks` has
the checks of values, each with an error that names the valid values; parameters of scikit-learn
that have no effect here are checked there too.
"""
