"""Partitions, participation, links and graphs: random processes as functions of seed, round and client."""
