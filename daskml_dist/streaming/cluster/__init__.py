"""Streams on a cluster: lanes on workers learn the calls of a session, under any policy.

`steps` runs in the client: `ClusterSteps` takes the place of the steps of the calling process, and
`StreamActors` holds the actors of one generation. `calls` cuts the rows of a call into steps and
deals them to lanes. `worker` runs on the workers: the actor, its thread, and a learner for each
loop of a policy.
"""
