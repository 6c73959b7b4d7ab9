"""A worker's part of a fit: the trainer with its lanes and loops, and the actor that hosts a
server.
"""
