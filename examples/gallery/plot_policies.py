"""
One fit under each policy
=========================

The same rows, four lanes, and the loss after each pass under the seven policies.
"""

# %%
# Rows in memory are trained in this process; ``Run(n_lanes=4)`` makes four logical workers of it,
# as a cluster of four would have. A rate of its own lets the policies differ: by default a fit
# begins near its end.

import matplotlib.pyplot as plt
from sklearn.datasets import make_classification

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier
from daskml_dist.policies import POLICIES

X, y = make_classification(4_000, 20, n_informative=10, flip_y=0.1, random_state=0)
settings = {"learning_rate": 0.05, "batch_size": 64, "max_iter": 8, "tol": None}

# %%
# ``history_`` has a record a pass.

for policy in POLICIES:
    clf = SGDClassifier(policy=policy, run=Run(n_lanes=4), random_state=0, **settings).fit(X, y)
    losses = [record["loss"] for record in clf.history_.records]
    plt.plot(range(1, len(losses) + 1), losses, "o-", label=policy)
plt.xlabel("pass")
plt.ylabel("training loss")
plt.legend()
plt.show()
