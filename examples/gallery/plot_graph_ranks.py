"""
Ranks of a graph
================

PageRank of a small graph whose edges are rows of a frame.
"""

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from daskml_dist.graph import pagerank

rng = np.random.default_rng(0)
popular = rng.zipf(1.8, size=3_000) % 40  # some vertices are linked to far more often
edges = pd.DataFrame({"source": rng.integers(40, size=3_000), "target": popular})
ranks = pagerank(dd.from_pandas(edges, npartitions=2)).sort_values("rank", ascending=False)

# %%
# A vertex that is linked to by vertices of high rank ranks higher than its links alone would say.

links = edges["target"].value_counts().reindex(ranks["vertex"], fill_value=0)
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.loglog(np.arange(1, len(ranks) + 1), ranks["rank"], "o-")
left.set(xlabel="place", ylabel="rank", title="How ranks fall")
right.scatter(links, ranks["rank"], s=14)
right.set(xlabel="links to it", ylabel="rank", title="Links and rank", xscale="symlog")
plt.show()
