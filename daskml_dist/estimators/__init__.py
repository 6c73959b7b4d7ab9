"""Base classes of the estimators, and code shared by all kinds of fits.

Open these first:

- `base`: every estimator that is fitted to rows (validation of input, predictions of collections),
- `gradient_steps`: estimators trained by gradient steps under a policy,
- `solver_rounds`: estimators fitted by a solver that requests sums over all rows,
- `classifier`, `regressor`, `unsupervised`: targets, labels and scores,
- `transformer`: scikit-learn's transformers, lifted to blocks of Dask collections,
- `linear/`, `trees/`: code shared by linear models, and by decision trees and forests,
- `batched_fits/`: many fits trained together, such as the candidates and splits of a search.

Concrete estimators are in the subpackages that users import from, such as
`daskml_dist.linear_model`.
"""
