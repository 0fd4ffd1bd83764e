"""Whether a method uses the importance weights w_i, found by comparing what it does with two choices of them."""

import numpy as np
import torch

from raylfl.core.algorithm import Algorithm, normalise
from raylfl.core.population import Population
from raylfl.experiment.parts import Experiment
from raylfl.testing.simulation import Simulation, recorded_round

SIZES = np.array([1, 2, 3, 6])  # samples of the clients of the comparison
ROUNDS = 2


def unused_weights(experiment: Experiment) -> list[str]:
    """A warning if `weights` are not uniform, but neither sampling nor server step of this run depend on them.

    There is none if the expected coefficients of the aggregation are proportional to w_i for another reason, such as
    clients sampled in proportion to their data. Methods without a server are not examined.
    """
    algorithm, weights = experiment.algorithm, experiment.setup.population.weights
    if np.ptp(weights) == 0 or algorithm.pattern.peers or uses_weights(algorithm):
        return []
    from raylfl.runtime.round.plan import Planner

    planner = Planner(experiment)
    server = algorithm.init_server(torch.zeros(1, dtype=torch.float64), experiment.world.population)
    expected = planner.expected_coefficients(planner.system(0), server)
    if expected is not None and np.allclose(normalise(expected), weights, rtol=1e-6):
        return []
    name, config = experiment.config.resolved["algorithm"]["name"], experiment.config.resolved
    remedy = "algorithm.aggregate=weighted uses them" if "aggregate" in config["algorithm"] else "only metrics use them"
    return [f"weights={config['weights']} has no effect on the parameters: {name} does not use w_i here; {remedy}"]


def uses_weights(algorithm: Algorithm) -> bool:
    """Whether sampling probabilities, clients or server step of the method depend on the importance weights.

    Two rounds are computed with uniform weights, and with weights proportional to the numbers of samples.
    """
    uniform, by_size = (_outcome(algorithm, Population.of(SIZES, kind)) for kind in ("uniform", "data_size"))
    return not all(torch.equal(a, b) for a, b in zip(uniform, by_size, strict=True))


def _outcome(algorithm: Algorithm, population: Population) -> list[torch.Tensor]:
    everyone, x = np.arange(population.count), torch.ones(3, dtype=torch.float64)
    centres = torch.linspace(-1.0, 2.0, 3 * population.count, dtype=torch.float64).square().reshape(-1, 3)
    run = Simulation(algorithm, lambda client, at, r, t: at - centres[client], x, population)
    found = []
    for index in range(ROUNDS):
        r = recorded_round(index, everyone, population, steps=2)
        assert r.system is not None
        if algorithm.samples_by_norm:
            found.append(torch.from_numpy(algorithm.norm_probabilities(run.server, r.system, np.ones(len(everyone)))))
        elif (p := algorithm.probabilities(run.server, r.system)) is not None:
            found.append(torch.from_numpy(p))
        found.append(run.run_round(r)["x"].clone())
    return found
