"""Many fits trained as one, such as the candidates and splits of a search.

`solver_rounds` batches linear models fitted by round solvers, `gradient_steps` those trained by
gradient steps. A *candidate* is one model, fitted to the training rows of one split.
"""
