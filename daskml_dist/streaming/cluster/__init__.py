"""Streams on a cluster: lanes on workers learn the calls of a session, under any policy.

`steps` is what a session uses in place of the steps of its own process, `stream_actors` the actors
of one generation as the client holds them, `calls` how rows are dealt among lanes. `host` and
`learner` run on workers.
"""
