"""The content of `raylfl theory`: constants, step sizes that theorems admit, and the guarantees of the theorems.

Also the step size for `local.lr={theory: PAPER}`, the largest that a theorem of the paper admits.
"""

from dataclasses import dataclass
from typing import Any

from raylfl.config.groups.local import PAPERS
from raylfl.config.load import Config
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.experiment.parts import Experiment
from raylfl.theory.constants import Constants, constants_of
from raylfl.theory.facts import broken_assumptions, facts_of, plain_sgd
from raylfl.theory.objectives import Objectives
from raylfl.theory.promises import left_out, promises, step_bounds
from raylfl.theory.statements import Promise, StepBound


@dataclass(frozen=True)
class Theory:
    """The constants, step-size bounds and guarantees of theorems for an experiment.

    eta: the configured local step size. notes: violated assumptions, and theorems that do not apply.
    """

    eta: float
    constants: Constants
    steps: list[StepBound]
    promises: list[Promise]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain values, for JSON."""
        return {
            "eta": self.eta,
            "constants": [vars(c) for c in self.constants],
            "clients": {symbol: values.tolist() for symbol, values in self.constants.clients.items()},
            "steps": [vars(s) | {"inside": s.admits(self.eta)} for s in self.steps],
            "promises": [{"theorem": p.theorem, "what": p.what, "value": p.value} for p in self.promises],
            "notes": self.notes,
        }


def theory_of(experiment: Experiment) -> Theory:
    """Computes constants, step-size bounds and guarantees of theorems for an experiment."""
    objectives, facts = Objectives(experiment), facts_of(experiment)
    problem = objectives.quadratic()
    constants = constants_of(objectives, facts, problem)
    steps = list(step_bounds(experiment, facts, constants))
    notes = list(broken_assumptions(experiment, facts))
    promised = list(promises(experiment, facts, constants, problem, steps))
    missing = list(left_out(experiment, facts))
    notes += missing
    if not steps and not promised and not missing:
        name = experiment.config.resolved["algorithm"]["name"]
        notes.append(f"no theorem of the four papers is about {name}")
    return Theory(experiment.rule.lr, constants, steps, promised, notes)


def resolve_rate(config: Config) -> list[str]:
    """Replaces a `local.lr` that names a paper by a number, in place; returns warnings about its assumptions.

    The number is the largest step size that the paper's theorem with the strongest assumption admits; the theorem is
    recorded in `local.lr_from`. Raises BadConfig if no theorem of the paper applies to the run or the constants of the
    theorem are only estimates.
    """
    paper = config.local.lr_by_theory
    if paper is None:
        return []

    def refused(reason: str) -> BadConfig:
        return BadConfig(f"local.lr={{theory: {paper}}}, but {reason}; set a number")

    config.local.set_lr(1.0, None)  # any value: no admissible step size depends on it
    experiment = assemble(config)
    facts, objectives = facts_of(experiment), Objectives(experiment)
    if (broken := next(plain_sgd(experiment), None)) is not None:
        raise refused(broken)
    constants = constants_of(objectives, facts, objectives.quadratic())
    bounds = [b for b in step_bounds(experiment, facts, constants) if b.theorem.startswith(PAPERS[paper])]
    if not bounds:
        name = config.resolved["algorithm"]["name"]
        missing = [line for line in left_out(experiment, facts) if line.startswith(PAPERS[paper])]
        missing += [f"no theorem of that paper has a step size for algorithm.name={name} on this problem"]
        raise refused(missing[0])
    if not constants.exact("L"):
        raise refused("L is only an estimate for this model (`raylfl theory` prints it)")
    lr, theorem, case = bounds[0].largest, bounds[0].theorem, bounds[0].case
    if not 0 < lr < float("inf"):
        raise refused(f"{theorem} ({case}) admits {lr:g} here")
    config.local.set_lr(lr, f"{theorem}, {case}")
    config.resolved["local"] |= {"lr": lr, "lr_from": config.local.lr_from}
    return [f"local.lr is that of {theorem}; {note}" for note in broken_assumptions(experiment, facts)]
