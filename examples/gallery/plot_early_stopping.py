"""
Ending a fit by rows of its own
===============================

Scores of an ``eval_set`` after each pass, and the pass that is kept.
"""

import matplotlib.pyplot as plt
import numpy as np

from daskml_dist.callbacks import EarlyStopping
from daskml_dist.neural_network import MLPClassifier

rng = np.random.default_rng(0)
X = rng.normal(size=(1_200, 20))
y = (X[:, 0] * X[:, 1] > 0) ^ (rng.random(1_200) < 0.15)  # labels are wrong now and then
fit, held = slice(0, 600), slice(600, 1_200)

# %%
# A network that learns the wrong labels by heart, if it is let.

model = MLPClassifier(
    (64,),
    learning_rate_init=0.01,
    max_iter=60,
    tol=None,
    random_state=0,
    callbacks=[EarlyStopping(patience=10, restore_best=True)],
)
model.fit(X[fit], y[fit], eval_set=(X[held], y[held]), scoring="accuracy")

records = model.history_.records
passes = [record["pass"] for record in records]
scores = [record["eval_score"] for record in records]
fig, ax = plt.subplots()
ax.plot(passes, scores, label="accuracy of the eval_set")
ax.plot(passes, [record["loss"] for record in records], label="training loss")
ax.axvline(passes[int(np.argmax(scores))], linestyle=":", color="grey", label="kept")
ax.set(xlabel="pass")
ax.legend()
plt.show()
