"""What feeds the simulator of `daskml_dist.planning`: measured costs, real gradients, cores."""
