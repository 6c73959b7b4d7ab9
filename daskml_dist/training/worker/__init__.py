"""A worker's part of a fit: the trainer, its lanes and loops, and the actor that hosts a server."""
