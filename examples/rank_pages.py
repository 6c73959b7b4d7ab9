"""Who is voted for by whom counts: PageRank of a file of edges, its parts, and a picture.

    python examples/rank_pages.py wiki-Vote.txt --picture ranks.png

ranks what a text file of edges links: two columns, source and target; lines that begin with # are
left out. Default: what ``python examples/fetch.py snap`` puts in place, votes for administrators of
Wikipedia (Leskovec, Huttenlocher and Kleinberg 2010).
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
from distributed import Client, LocalCluster
from fetch import data_folder, require

from daskml_dist.graph import VertexProgram, connected_components, pagerank


class StepsAway(VertexProgram):
    """Number of edges from a vertex to each of those that its edges lead to."""

    combine = "min"

    def __init__(self, origin: Any) -> None:
        self.origin = origin

    def start(self, vertices: Any, degree: Any) -> Any:
        return np.where(vertices == self.origin, 0.0, np.inf)

    def gather(self, value: Any, degree: Any, weight: Any) -> Any:
        return value + 1

    def apply(self, old: Any, total: Any) -> Any:
        return np.minimum(old, total)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", default=data_folder("snap") / "wiki-Vote.txt")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--top", type=int, default=40, help="vertices that the picture shows")
    parser.add_argument("--picture", type=Path, help="draw them to this file (matplotlib)")
    arguments = parser.parse_args()
    if arguments.picture and importlib.util.find_spec("matplotlib") is None:
        parser.error("--picture needs matplotlib: pip install matplotlib")
    require(parser, "snap", arguments.file)
    with (
        LocalCluster(
            n_workers=arguments.workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
    ):
        edges = dd.read_csv(
            arguments.file, sep=r"\s+", comment="#", names=["source", "target"], blocksize="256KiB"
        ).persist()
        ranks = pagerank(edges, tol=1e-10).sort_values("rank", ascending=False)
        parts = connected_components(edges)["component"].value_counts()
        best = ranks["vertex"].iloc[0]
        # From the best: who is voted for by those whom it votes for, and so on.
        away = StepsAway(best).run(edges)["value"]
        top = ranks.head(arguments.top)
        chosen = edges[edges["source"].isin(top["vertex"]) & edges["target"].isin(top["vertex"])]
        links, n_edges = chosen.compute(), len(edges)
    print(
        f"{n_edges:,} edges, {len(ranks):,} vertices, {len(parts)} components, the largest of ",
        end="",
    )
    print(f"{parts.iloc[0]:,}; {np.isfinite(away).sum():,} can be reached from {best}")
    for vertex, rank in top.head(10).itertuples(index=False):
        print(f"{vertex:>8} {rank:.6f}")
    if arguments.picture:
        draw(ranks["rank"].to_numpy(), top, links, arguments.picture)
        print(f"drawn to {arguments.picture}")


def draw(ranks: Any, top: Any, links: Any, path: Path) -> None:
    """Draw how ranks fall, and the first vertices with the edges between them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.2), layout="constrained")
    falls, circle = figure.subplots(1, 2)
    falls.loglog(np.arange(1, len(ranks) + 1), ranks)
    falls.set(xlabel="place", ylabel="rank", title="How ranks fall")
    angle = dict(
        zip(top["vertex"], np.linspace(0, 2 * np.pi, len(top), endpoint=False), strict=True)
    )
    for source, target in links[["source", "target"]].itertuples(index=False):
        at = [(np.cos(angle[v]), np.sin(angle[v])) for v in (source, target)]
        circle.plot(*zip(*at, strict=True), color="tab:blue", alpha=0.12, linewidth=0.8, zorder=1)
    places = np.array(list(angle.values()))
    size = 350 * top["rank"] / top["rank"].max()
    circle.scatter(np.cos(places), np.sin(places), s=size, color="tab:orange", zorder=2)
    for vertex, at in list(angle.items())[:12]:
        circle.text(1.14 * np.cos(at), 1.14 * np.sin(at), vertex, ha="center", va="center")
    circle.set(title=f"The first {len(top)}, and their links", aspect="equal")
    circle.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3))
    circle.axis("off")
    figure.savefig(path)


if __name__ == "__main__":
    main()
