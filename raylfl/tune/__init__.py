"""Sweeps: many settings of a space of config keys, on Ray Tune.

A setting is a point of the space. Ray Tune runs it as a trial: one run for each seed, with reports of their
mean score. Ray Tune starts the trials in placement groups, limits how many run at once, retries failed ones, and passes
the reports to its ASHAScheduler and OptunaSearch. These modules add features that Ray Tune lacks:

    journal, seed_runs   the state of a trial is its run directories, which can be resumed from their own checkpoints
                         after SIGKILL, with a later Ray, or by another user
    kinds, studies       settings are compared only with the same algorithm, data and model; each point of the grids
                         has a study of its own; both go on where an interrupted sweep has stopped
    score, table         means over the last rounds, rounds to a target; Ray Tune has the last, best and average report
    stage, trial_log     one line per trial, without Tune's output, files and signal handlers in the user's process
"""
