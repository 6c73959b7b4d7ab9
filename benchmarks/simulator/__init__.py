"""Inputs of the simulator in `daskml_dist.planning`: measured costs, real gradients, cores."""
