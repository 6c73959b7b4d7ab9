"""
A search as one fit
===================

Cross-validated scores of forty penalties: candidates and folds are columns of one matrix, so all of
them see a row when it is read once.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification

from daskml_dist.linear_model import LogisticRegression
from daskml_dist.model_selection import GridSearchCV

X, y = make_classification(600, 100, n_informative=10, n_redundant=40, flip_y=0.1, random_state=0)
search = GridSearchCV(
    LogisticRegression(),
    {"C": np.logspace(-5, 2, 40)},
    cv=4,
    scoring="neg_log_loss",
    return_train_score=True,
).fit(X, y)

# %%
# ``cv_results_`` is scikit-learn's.

found = search.cv_results_
C = np.array(found["param_C"], dtype=float)
for part in ("train", "test"):
    mean, spread = -found[f"mean_{part}_score"], found[f"std_{part}_score"]
    plt.semilogx(C, mean, label=part)
    plt.fill_between(C, mean - spread, mean + spread, alpha=0.2)
plt.axvline(search.best_params_["C"], linestyle=":", color="grey")
plt.xlabel("C")
plt.ylabel("log loss")
plt.legend()
plt.show()
