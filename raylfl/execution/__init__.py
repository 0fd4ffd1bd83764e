"""Runs as values: existing runs are found, interrupted ones resumed, missing ones made, several at a time.

A run is a function of its config. `raylfl.run` on a list, `raylfl.compare` and `raylfl reproduce` plan runs; a run that
is complete in its folder is not made again.

    planned    a run that is needed: its config, its folder, and whether it is complete there
    store      the folder of a run of a comparison: named after the run, and equal in identity.txt
    executor   the missing runs: in turn in this process, in parallel processes, or on the nodes of a cluster
    processes  child processes, each of which executes one run after the other
    several    the Python interface: a list of runs and their results
"""
