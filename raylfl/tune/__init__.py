"""Sweeps: many runs over a space of config keys, on Ray Tune.

Ray Tune starts the trials' processes in placement groups, hands their reports to a scheduler, retries what fails, and
runs PBT. The rest is here because Ray Tune lacks it:

    journal, trial   a trial is an ordinary run directory, resumed from its own checkpoints after SIGKILL, with a later
                     Ray, by another user; Tune's state is pickled, and its restored trials start from Tune's copies
    asha             settings instead of single seeds compete, and only with their kind
    proposals        Optuna learns the mean of a setting's seeds; a paused trial leaves its place to another
    score, table     seeds pooled, last-k means, rounds to a target; Tune knows the last, best and average report
    resources        refuses at once, with the arithmetic, what would wait for ever; workers that leave room
    stage, trial_log Tune's output, files and signal handlers kept out of the user's process; one line a trial
"""
