"""Schedulers, which decide which trials continue: fifo (all), asha (the better settings), pbt (mutated copies).

ASHA: `raylfl.tune.asha`. PBT: Jaderberg et al., "Population Based Training of Neural Networks", 2017, as implemented
by Ray Tune. The schedulers measure time in rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from raylfl.config.components import typed
from raylfl.errors import BadConfig, BadValue
from raylfl.options import Doc, Ge, Gt, Le, Options
from raylfl.tune.slots import TrialSlots
from raylfl.tune.space import Domain, Space

FIXED = ("algorithm.name",)  # keys that cannot change during a run, in the groups that PBT may change


@dataclass
class Fifo(Options):
    """The scheduler that runs every trial to its last round."""

    def build(self, space: Space, rounds: int, seed: int, seeds: int, slots: TrialSlots) -> Any:
        """The scheduler object for Ray Tune.

        rounds: the length of a run. seed: the seed of the sweep's random draws. seeds: the number of seeds of each
        setting. slots: the limit on running trials.
        """
        from ray.tune.schedulers import FIFOScheduler

        return FIFOScheduler()


@dataclass
class Asha(Options):
    """ASHA: at rounds grace, grace * reduction, ... a setting continues if it is in the best 1 / reduction so far.

    Settings are compared by their mean scores over seeds, and only with settings of the same algorithm in the same
    scenario (data, model, participation, ...). All seeds of a setting continue, or none.
    """

    grace: Annotated[int, Ge(1), Doc("rounds before a setting may be stopped; null: a tenth of the rounds")] | None = (
        None
    )
    reduction: Annotated[float, Gt(1), Doc("the best 1 / reduction of the settings continue")] = 3.0

    def build(self, space: Space, rounds: int, seed: int, seeds: int, slots: TrialSlots) -> Any:
        from raylfl.tune.asha import SettingAsha

        return SettingAsha(self.grace or max(rounds // 10, 1), self.reduction, rounds, seeds, slots)


@dataclass
class Pbt(Options):
    """PBT: every `interval` rounds, each of the worst runs is replaced by a mutated copy of one of the best."""

    interval: Annotated[int, Ge(1), Doc("rounds between mutations; null: a tenth of the rounds")] | None = None
    quantile: Annotated[float, Gt(0), Le(0.5), Doc("the share of the runs that counts as worst, and as best")] = 0.25
    resample: Annotated[
        float, Ge(0), Le(1), Doc("the probability that a value is drawn again instead of multiplied by 0.8 or 1.2")
    ] = 0.25

    def every(self, rounds: int) -> int:
        return self.interval or max(rounds // 10, 1)

    def check(self, space: Space) -> None:
        """Checks that PBT can change every key of the space during a run; raises BadConfig."""
        for key, domains in space.keys.items():
            place = f"space.{key}"
            if key in FIXED or key.partition(".")[0] not in ("local", "algorithm"):
                raise BadConfig(
                    f"{place} cannot change in the middle of a run: pbt takes local.* and options of algorithm"
                )
            if len(domains) > 1 or domains[0].when or domains[0].kind == "grid":
                need = "one unconditional choice, uniform, loguniform or randint"
                raise BadValue(place, got=[d.kind for d in domains], need=need, hint="as pbt mutates it")

    def build(self, space: Space, rounds: int, seed: int, seeds: int, slots: TrialSlots) -> Any:
        from raylfl.tune.seeded_pbt import SeededPBT

        mutations = {key: mutation(domains[0]) for key, domains in space.keys.items()}
        return SeededPBT(
            rounds,
            seed,
            perturbation_interval=self.every(rounds),
            quantile_fraction=self.quantile,
            resample_probability=self.resample,
            hyperparam_mutations={"trial": {"values": mutations}},
            custom_explore_fn=lambda config: within(config, space),
        )


def mutation(domain: Domain) -> Any:
    """The domain in the form that Ray Tune's PBT expects.

    A choice is a list: PBT then changes a value to one of its neighbours in the list.
    """
    from ray import tune

    if domain.kind == "choice":
        return list(domain.args)
    return getattr(tune, domain.kind)(*domain.args)


def within(config: dict[str, Any], space: Space) -> dict[str, Any]:
    """Clips the mutated values of a trial's Ray Tune config to their ranges, in place; returns the config."""
    values = config["trial"]["values"]
    for key, (domain, *_) in space.keys.items():
        if domain.kind == "randint":
            values[key] = int(min(max(round(values[key]), domain.args[0]), domain.args[1] - 1))
        elif domain.kind != "choice":
            values[key] = domain.rounded(values[key])
    return config


Scheduler = Fifo | Asha | Pbt
SCHEDULERS: dict[str, type[Scheduler]] = {"fifo": Fifo, "asha": Asha, "pbt": Pbt}


def parse_scheduler(content: Any) -> Scheduler:
    """The scheduler that `content` describes: a name such as `asha`, or a mapping such as {name: asha, grace: 20}.

    Raises BadConfig for another form, an unknown name or a bad option.
    """
    options = {"name": content} if isinstance(content, str) else content
    if not isinstance(options, Mapping) or options.get("name") not in SCHEDULERS:
        raise BadValue("scheduler", got=content, need=f"one of {', '.join(SCHEDULERS)}", hint="or {name: ..., options}")
    rest = {k: v for k, v in options.items() if k != "name"}
    return typed(SCHEDULERS[options["name"]], rest, "scheduler")
