"""Kinds of cells found in sparse counts of genes: log-normalised, PCA, k-means, all lazily.

    python examples/cell_counts.py
    python examples/cell_counts.py --cells 200000 --genes 3000 --picture cells.png

draws counts as of single-cell RNA sequencing: each cell is of one of several kinds, of which some
genes are marks, and is read to its own depth. The counts are a Dask Array of CSR chunks, as
anndata's `adata.X` is where it is read lazily. Each chunk is normalised by itself, PCA reads the
sparse chunks as they are, and k-means takes its answers. The program tells how well clusters and
kinds agree; --picture draws the cells by their first two components (matplotlib).
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

from daskml_dist.cluster import KMeans
from daskml_dist.decomposition import PCA

#: Kinds of cells, genes that mark a kind, cells of a chunk, and reads of a cell.
KINDS, MARKS, CHUNK, DEPTH = 6, 40, 2_000, 1_500
#: Reads that each cell is scaled to, as scanpy's `normalize_total` is told mostly.
TARGET = 1e4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--genes", type=int, default=1_000)
    parser.add_argument("--components", type=int, default=10)
    parser.add_argument("--picture", type=Path, help="file to draw the cells to")
    arguments = parser.parse_args()
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")
    counts, kinds = draw_counts(arguments.cells, arguments.genes)
    rows = counts.map_blocks(normalise, dtype=np.float32, meta=counts._meta)
    pca = PCA(arguments.components, random_state=0).fit(rows)
    cells = pca.transform(rows).persist()
    clusters = KMeans(KINDS, random_state=0).fit(cells).labels_
    kinds, clusters, cells = dask.compute(kinds, clusters, cells)
    share = pca.explained_variance_ratio_.sum()
    print(f"{counts.shape[0]:,} cells x {counts.shape[1]:,} genes in {counts.numblocks[0]} chunks")
    print(f"{arguments.components} components explain {share:.1%} of the variance")
    print(
        f"clusters and kinds agree: adjusted Rand index {adjusted_rand_score(kinds, clusters):.3f}"
    )
    if arguments.picture:
        draw(cells, clusters, arguments.picture)


def draw_counts(n_cells: int, n_genes: int) -> tuple[Any, Any]:
    """Lazy counts, CSR by the chunk, and the kind of each cell."""
    rng = np.random.default_rng(0)
    base = rng.gamma(0.3, size=n_genes)
    profiles = np.tile(base, (KINDS, 1))
    for profile in profiles:
        profile[rng.choice(n_genes, MARKS, replace=False)] += 3 * base.mean()
    profiles /= profiles.sum(axis=1, keepdims=True)
    sizes = [min(CHUNK, n_cells - first) for first in range(0, n_cells, CHUNK)]
    chunks = [
        dask.delayed(draw_chunk, nout=2)(number, n, profiles) for number, n in enumerate(sizes)
    ]
    meta = sparse.csr_array((0, n_genes), dtype=np.float32)
    counts = [
        da.from_delayed(chunk[0], (n, n_genes), meta=meta)
        for chunk, n in zip(chunks, sizes, strict=True)
    ]
    kinds = [da.from_delayed(chunk[1], (n,), int) for chunk, n in zip(chunks, sizes, strict=True)]
    return da.concatenate(counts), da.concatenate(kinds)


def draw_chunk(number: int, n: int, profiles: Any) -> tuple[Any, Any]:
    """Counts of some cells, and their kinds."""
    rng = np.random.default_rng([1, number])
    kinds = rng.integers(len(profiles), size=n)
    depths = rng.lognormal(np.log(DEPTH), 0.4, size=n)
    counts = rng.poisson(profiles[kinds] * depths[:, None])
    return sparse.csr_array(counts.astype(np.float32)), kinds


def normalise(counts: Any) -> Any:
    """Counts scaled to equal sums, as logarithms; zeros stay zeros."""
    sums = np.asarray(counts.sum(axis=1)).ravel()
    scaled = sparse.csr_array(counts, copy=True)
    scaled.data *= np.repeat(TARGET / np.maximum(sums, 1), np.diff(counts.indptr))
    np.log1p(scaled.data, out=scaled.data)
    return scaled


def draw(cells: Any, clusters: Any, path: Path) -> None:
    """The cells by two components, coloured by cluster."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.scatter(*cells[:, :2].T, c=clusters, s=2, cmap="tab10")
    axes.set(xlabel="component 1", ylabel="component 2", title="Cells by the counts of their genes")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
