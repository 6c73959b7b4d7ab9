"""Frequent itemsets (items that are often bought together) and association rules."""

from __future__ import annotations

from daskml_dist.frequent_patterns.itemsets import frequent_itemsets
from daskml_dist.frequent_patterns.rules import association_rules

__all__ = ["association_rules", "frequent_itemsets"]
