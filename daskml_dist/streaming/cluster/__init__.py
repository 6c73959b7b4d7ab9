"""Streams on a cluster: lanes on workers learn the calls of a session, under any policy.

`steps` runs in the client: `ClusterSteps` replaces the steps of the calling process, and
`StreamActors` holds the actors of one generation. `calls` divides the rows of a call into steps and
assigns the rows of each step to lanes. `worker` runs on the workers: the actor, its thread, and one
learner class per step loop of the policies.
"""
