"""Samples: where they come from, which client has which, and what a rank holds of them.

sources.py reads and makes data sets, prepared.py stores them as one HDF5 file, partition.py assigns
samples to clients, shard.py gives each rank its clients' samples and draws minibatches.
"""
