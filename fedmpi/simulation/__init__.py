"""Algorithm 1 over MPI.

loop.py: the rounds, and the only order of collectives. training.py: the clients' part of a round.
client.py: one client's steps. plan.py, lending.py: which rank trains which client, and sending its samples.
client_tables.py: what clients remember. aggregate.py, exact.py: the same sum on any number of ranks.
evaluate.py: loss and accuracy. probe.py: the paper's constants at a point. stopping.py, clock.py: when to
stop, and where the time goes. energy.py: what the nodes use, where they tell.
"""
