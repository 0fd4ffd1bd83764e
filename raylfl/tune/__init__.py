"""Sweeps: many settings of a space of config keys, on Ray Tune.

A setting is a point of the space. Ray Tune runs it as a trial: one run for each seed, with reports of their
mean score. Ray Tune starts the trials in placement groups, limits how many run at once, retries failed ones, and passes
the reports to its ASHAScheduler. These modules add features that Ray Tune lacks:

    tuner, trial       the seeds of a trial are planned runs (`raylfl.execution`), which are found, resumed or made
                       settings are compared only with the same algorithm, data and model; one line per trial, without
                       Tune's output, files and signal handlers in the user's process
    studies            each point of the grids has a study, which goes on where an interrupted sweep has stopped
    journal            the settings that were drawn or proposed, and those that the scheduler stopped; tables
    score              means over the last rounds, rounds to a target; Ray Tune has the last, best and average report
"""
