"""Computes the local step size for `local.lr={theory: PAPER}`, the largest that a theorem of the paper admits."""

from raylfl.config.groups.local import PAPERS
from raylfl.config.load import Config
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.experiment.parts import Experiment


def resolve_rate(config: Config) -> list[str]:
    """Replaces a `local.lr` that names a paper by a number, in place; returns warnings about its assumptions.

    The number is the largest step size that the paper's theorem admits; the theorem is recorded in `local.lr_from`.
    Raises BadConfig if no theorem of the paper applies to the run or the constants of the theorem are only estimates.
    """
    paper = config.local.lr_by_theory
    if paper is None:
        return []
    config.local.set_lr(1.0, None)  # any value: no admissible step size depends on it
    lr, source, warnings = theory_rate(assemble(config), paper)
    config.local.set_lr(lr, source)
    config.resolved["local"] |= {"lr": lr, "lr_from": config.local.lr_from}
    return warnings


def theory_rate(experiment: Experiment, paper: str) -> tuple[float, str, list[str]]:
    """Returns the largest step size that a theorem of the paper admits, the theorem with its case, and warnings.

    If several bounds apply, the first one of `step_bounds` is used: the one with the strongest assumption.
    paper: `focus`, `sfl`, `fedacs` or `fedaware`. Raises BadConfig as `resolve_rate` does.
    """
    from raylfl.theory.constants import constants_of
    from raylfl.theory.facts import broken_assumptions, facts_of, plain_sgd
    from raylfl.theory.objectives import Objectives
    from raylfl.theory.promises import left_out, step_bounds

    def refused(reason: str) -> BadConfig:
        return BadConfig(f"local.lr={{theory: {paper}}}, but {reason}; set a number")

    facts, objectives = facts_of(experiment), Objectives(experiment)
    if (broken := next(plain_sgd(experiment), None)) is not None:
        raise refused(broken)
    constants = constants_of(objectives, facts, objectives.quadratic())
    bounds = [b for b in step_bounds(experiment, facts, constants) if b.theorem.startswith(PAPERS[paper])]
    if not bounds:
        missing = [line for line in left_out(experiment, facts) if line.startswith(PAPERS[paper])]
        if missing:
            raise refused(missing[0])
        name = experiment.config.resolved["algorithm"]["name"]
        raise refused(f"no theorem of that paper has a step size for algorithm.name={name} on this problem")
    if not constants.exact("L"):
        raise refused("L is only an estimate for this model (`raylfl theory` prints it)")
    strongest = bounds[0]
    if not 0 < strongest.largest < float("inf"):
        raise refused(f"{strongest.theorem} ({strongest.case}) admits {strongest.largest:g} here")
    notes = broken_assumptions(experiment, facts)
    warnings = [f"local.lr is that of {strongest.theorem}; {note}" for note in notes]
    return strongest.largest, f"{strongest.theorem}, {strongest.case}", warnings
