"""Training: one fit, from its placement on the workers to the gathered parameters."""
