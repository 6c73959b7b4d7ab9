"""
Boosted trees: loss, importance, dependence
===========================================

Gradient boosting of drawn rows whose truth is known.
"""

import matplotlib.pyplot as plt
import numpy as np

from daskml_dist.ensemble import HistGradientBoostingRegressor
from daskml_dist.inspection import partial_dependence, permutation_importance

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, size=(3_000, 4))
y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=3_000)

# %%
# Losses of the iterations are in ``train_score_`` and ``validation_score_``, as in scikit-learn,
# where rows are kept apart to stop by.

model = HistGradientBoostingRegressor(max_iter=60, early_stopping=True, random_state=0).fit(X, y)
importance = permutation_importance(model, X, y, n_repeats=3, random_state=0)

fig, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
left.plot(-model.train_score_, label="training")
left.plot(-model.validation_score_, label="kept apart")
left.set(title="loss", xlabel="iteration", yscale="log")
left.legend()
middle.bar(range(4), importance.importances_mean)
middle.set(title="importance", xlabel="feature")
for feature in (0, 1):
    found = partial_dependence(model, X, [feature], grid_resolution=30)
    right.plot(found["grid_values"][0], found["average"][0], label=f"feature {feature}")
grid = np.linspace(-1, 1, 50)
right.plot(grid, np.sin(3 * grid) + 1 / 3, ":", color="grey", label="truth of feature 0")
right.set(title="dependence")
right.legend()
plt.show()
