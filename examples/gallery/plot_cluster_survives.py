"""
A worker is killed, and the coefficients stay
=============================================

A fit on a cluster of three workers, one of which is lost meanwhile.
"""

# %%
# The workers here are threads of this process, so that the example is small; one is closed after
# the third pass, as a batch system would at its walltime.

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from distributed import Client, LocalCluster

from daskml_dist import Run
from daskml_dist.linear_model import SGDClassifier


class Close:
    """Closes a worker after a pass."""

    def on_pass_end(self, run, record):
        if record["pass"] == 3:
            client.loop.add_callback(cluster.workers[2].close)


rng = np.random.default_rng(0)
rows = rng.normal(size=(6_000, 20))
labels = rows @ rng.normal(size=20) + rng.logistic(size=6_000) > 0
coefs, changes = [], []
options = {"processes": False, "dashboard_address": ":0", "silence_logs": 50}
with (
    LocalCluster(n_workers=3, threads_per_worker=1, **options) as cluster,
    Client(cluster) as client,
):
    X = da.from_array(rows, chunks=(1_000, -1)).persist()
    y = da.from_array(labels, chunks=1_000).persist()
    for callbacks in ([], [Close()]):
        clf = SGDClassifier(
            policy="sync",
            learning_rate=0.1,
            tol=None,
            max_iter=200,
            random_state=0,
            run=Run(n_lanes=6, deterministic=True),
            callbacks=callbacks,
        ).fit(X, y)
        coefs.append(clf.coef_.ravel())
        changes.append(len(clf.history_.extra.get("generations", [])))

# %%
# The second fit had another generation of workers, and the same coefficients.

fig, ax = plt.subplots()
ax.bar(np.arange(20) - 0.2, coefs[0], 0.4, label="undisturbed")
ax.bar(np.arange(20) + 0.2, coefs[1], 0.4, label="a worker was lost")
ax.set(xlabel="feature", ylabel="coefficient")
ax.legend()
plt.show()

print(f"largest difference: {np.abs(coefs[0] - coefs[1]).max()}; changes of workers: {changes}")
