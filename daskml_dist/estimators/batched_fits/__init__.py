"""Many fits trained as one, such as the candidates and splits of a search.

`solver_rounds` batches linear models fitted by round solvers, `gradient_steps` those trained by
gradient steps; `grouping` tells which estimators can be batched with each other.
"""
