"""Graphs as frames of edges: ranks, components, and iterations of one's own."""

from __future__ import annotations

from daskml_dist.graph.vertex_functions import VertexProgram, connected_components, pagerank

__all__ = ["VertexProgram", "connected_components", "pagerank"]
