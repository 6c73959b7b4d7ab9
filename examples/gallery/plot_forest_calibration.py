"""
Can probabilities be trusted?
=============================

A forest, naive Bayes, and naive Bayes calibrated: how often a class comes that is given a
probability.
"""

import matplotlib.pyplot as plt
import numpy as np

from daskml_dist.calibration import CalibratedClassifierCV
from daskml_dist.ensemble import RandomForestClassifier
from daskml_dist.metrics import brier_score_loss, calibration_curve
from daskml_dist.naive_bayes import GaussianNB

rng = np.random.default_rng(0)
X = rng.normal(size=(6_000, 6))
X[:, 3:] = X[:, :3] + 0.1 * rng.normal(size=(6_000, 3))  # said twice, which naive Bayes trusts
y = (X[:, 0] - X[:, 1] + rng.logistic(size=6_000) > 0).astype(int)
fit, test = slice(0, 4_000), slice(4_000, 6_000)

models = {
    "forest": RandomForestClassifier(20, max_depth=6, random_state=0),
    "naive Bayes": GaussianNB(),
    "naive Bayes, calibrated": CalibratedClassifierCV(GaussianNB(), method="isotonic", cv=3),
}
for name, model in models.items():
    share = model.fit(X[fit], y[fit]).predict_proba(X[test])[:, 1]
    often, given = calibration_curve(y[test], share, n_bins=8)
    plt.plot(given, often, "o-", label=f"{name}, Brier {brier_score_loss(y[test], share):.3f}")
plt.plot([0, 1], [0, 1], ":", color="grey")
plt.xlabel("probability given")
plt.ylabel("how often it comes")
plt.legend()
plt.show()
