"""Sweeps: many runs over a space of config keys, on Ray Tune.

A trial is one run; a setting is one point of the space, run with one trial per seed. Ray Tune starts the trials'
processes in placement groups, passes their reports to a scheduler, retries failed trials and runs PBT (population based
training). These modules add features that Ray Tune lacks:

    journal, trial   a trial is an ordinary run directory, which can be resumed from its own checkpoints after SIGKILL,
                     with a later Ray, or by another user; Tune would pickle its state, and continue trials from its
                     own copies of their checkpoints
    asha             settings are compared instead of single seeds, and only with the same algorithm, data and model
    searchers        Optuna learns the mean over a setting's seeds; paused trials do not count as running ones
    score, table     pooled seeds, means over the last rounds, rounds to a target; Tune only has the last, best and
                     average report
    resources        a trial that can never fit is refused at once, with the needed and the available resources
    stage, trial_log one line per trial, without Tune's output, files and signal handlers in the user's process
"""
