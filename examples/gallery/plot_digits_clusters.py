"""
Centres of handwritten digits
=============================

k-means on scikit-learn's digits, and the components that tell most of them.
"""

import dask.array as da
import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

from daskml_dist.cluster import KMeans
from daskml_dist.decomposition import PCA

images, digits = load_digits(return_X_y=True)
X = da.from_array(images, chunks=(500, -1))

# %%
# With Dask input and no client, a cluster in this process lives as long as the fit.

model = KMeans(20, random_state=0).fit(X)
fig, axes = plt.subplots(2, 10, figsize=(10, 2.4))
for ax, centre in zip(axes.flat, model.cluster_centers_, strict=True):
    ax.imshow(centre.reshape(8, 8), cmap="gray_r")
    ax.axis("off")
plt.show()

# %%
# Two components, each digit in a colour.

flat = PCA(2).fit(X).transform(images)
plt.figure()
plt.scatter(*flat.T, c=digits, cmap="tab10", s=6)
plt.colorbar(label="digit")
plt.xlabel("first component")
plt.ylabel("second component")
plt.show()
