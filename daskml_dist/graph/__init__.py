"""Graphs as frames of edges."""

from __future__ import annotations

from daskml_dist.graph.page_rank import pagerank

__all__ = ["pagerank"]
