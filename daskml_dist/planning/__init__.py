"""Planning: where a fit had better run, and what it will take, told before it is made.

A few tiny fits tell what a fit, a pass, a step, a row and an entry cost at a place; the rest is
counting, by families of estimators. The costs are kept in the user's cache folder. Clusters that
there are not are simulated.
"""

from __future__ import annotations

from daskml_dist.planning.advising import advise
from daskml_dist.planning.costs import Costs, Work
from daskml_dist.planning.plan import Choice, Plan

__all__ = ["Choice", "Costs", "Plan", "Work", "advise"]
