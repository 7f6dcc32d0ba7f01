"""Samples: where they come from, which client has which, and what a rank holds of them.

sources.py loads and makes data sets, originals.py reads the files they are published in, prepared.py stores
them as one HDF5 file. partition.py and partition_rules.py give the samples to clients, ownership.py the
clients to ranks. loading.py brings each rank its samples, shard.py draws minibatches from them,
evaluation.py has the rank's part of the evaluation sets. rng.py: addressed random numbers.
"""
