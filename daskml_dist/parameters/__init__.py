"""Parameters that estimators share: their checks, and how a fit runs.

`run` has `Run`, the parameter that lays a fit out over a cluster; `checks` the checks of values,
each with an error that names what is valid, and the parameters of scikit-learn that are checked and
then have no effect.
"""
