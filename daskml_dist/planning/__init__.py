"""Planning of fits: estimates of time and memory at each place, before anything is trained.

A few tiny fits measure the cost of a fit, a pass, a step, a row and an entry at a place. The time
of a fit is the sum of these costs times its operation counts, which each family of estimators
computes. The costs are kept in the user's cache folder. Clusters that do not exist are simulated.
"""

from __future__ import annotations

from daskml_dist.planning.advising import advise
from daskml_dist.planning.costs import Costs, PackedMessage, Work
from daskml_dist.planning.plan import Choice, Plan

__all__ = ["Choice", "Costs", "PackedMessage", "Plan", "Work", "advise"]
