"""Graph algorithms on frames of edges: PageRank, connected components, vertex programs."""

from __future__ import annotations

from daskml_dist.graph.vertex_functions import VertexProgram, connected_components, pagerank

__all__ = ["VertexProgram", "connected_components", "pagerank"]
