"""The content of `raylfl theory`: constants, step sizes that theorems admit, and the guarantees of the theorems."""

from dataclasses import dataclass
from typing import Any

from raylfl.experiment.parts import Experiment
from raylfl.theory.constants import Constants, constants_of
from raylfl.theory.facts import broken_assumptions, facts_of
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
