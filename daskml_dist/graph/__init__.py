"""Graphs as frames of edges: ranks, components, and iterations of one's own."""

from __future__ import annotations

from daskml_dist.graph.components import connected_components
from daskml_dist.graph.page_rank import pagerank
from daskml_dist.graph.vertex_program import VertexProgram

__all__ = ["VertexProgram", "connected_components", "pagerank"]
