"""Models: pure functions of arrays."""
