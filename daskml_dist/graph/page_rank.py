"""`pagerank`."""

from __future__ import annotations

from typing import Any

from daskml_dist._run import Run
from daskml_dist.graph._edges import edges_fit, find_chosen, result_frame, warn_unsettled
from daskml_dist.solvers.ranks import PageRankSolver
from daskml_dist.training.callbacks import CallbackList

__all__ = ["pagerank"]


def pagerank(
    edges: Any,
    damping: float = 0.85,
    *,
    personalization: Any = None,
    max_iter: int = 100,
    tol: float = 1e-6,
    nstart: Any = None,
    dangling: Any = None,
    source: Any = "source",
    target: Any = "target",
    weight: Any = None,
    run: Run | None = None,
    client: Any = None,
) -> Any:
    fit = edges_fit(edges, (source, target, weight), PageRankSolver.sides, run, client, "pagerank")
    with fit:
        solver = PageRankSolver(
            float(damping),
            int(max_iter),
            float(tol),
            find_chosen(fit, "in", personalization, "personalization"),
            find_chosen(fit, "in", dangling, "dangling"),
            find_chosen(fit, "in", nstart, "nstart"),
        )
        solution, _, _ = fit.solve(solver, CallbackList([]))
        ids = fit.ids("in")
    if not solution.converged:
        warn_unsettled("pagerank", solution.n_iter, solution.message, "Increase max_iter, or tol.")
    return result_frame(ids, "rank", solution.values["vertex"])
