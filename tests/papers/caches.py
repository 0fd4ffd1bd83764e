"""A cache that runs nothing: configs are loaded, and records are made up."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from papers.run_cache import CellConfig, RunCache, set_keys
from raylfl.config.identity import flatten
from raylfl.report.runs import Group, RunRecord

ROUNDS = 40


def setting(label: str, bases: Sequence[str], options: dict | None = None) -> CellConfig:
    """A setting from config files and values of dotted keys."""
    return CellConfig(label, set_keys({"base": list(bases)}, options or {}))


def toy(label: str = "toy", **options) -> CellConfig:
    """Four rounds of quadratics, unless other values of dotted keys say more."""
    return setting(label, ["reproduce/sfl_fig1"], {"rounds": 4, **options})


class DryCache(RunCache):
    """`groups` checks the settings as a run would, and answers with made-up curves that differ by setting.

    Settings that differ in numbers only are loaded once by all tests: loading takes 25 ms, and tables have hundreds.
    asked: setting, config and seeds of all groups. missing: the runs whose labels contain it have no groups.
    """

    missing = "\n"
    loaded: ClassVar[dict[tuple, dict]] = {}

    def __init__(self, folder: Path, scale: str = "smoke", overrides: Sequence[str] = ()):
        super().__init__(folder, scale, overrides, jobs=1)
        self.asked: list[tuple[CellConfig, dict, Sequence[int]]] = []

    def groups(self, settings: Sequence[CellConfig], seeds: Sequence[int] = (0,)) -> list[Group]:
        assert len({s.label for s in settings}) == len(settings), "two settings of one name"
        made = []
        for setting in (setting for setting in settings if self.missing not in setting.label):
            config = self._config(setting)
            self.asked.append((setting, config, seeds))
            path = self.folder / setting.label
            made.append(Group(setting.label, flatten(config), [record(path, config, seed) for seed in seeds]))
        return made

    def _config(self, setting: CellConfig) -> dict:
        options = flatten(setting.config)
        kinds = {k: type(v) if isinstance(v, int | float) else v for k, v in options.items()}
        shape = self.scale, self.overrides, str(kinds)
        if shape not in self.loaded:
            self.loaded[shape] = self.plan(setting, 0).config
        return set_keys(self.loaded[shape], {k: v for k, v in options.items() if k != "base"})


def record(path: Path, config: dict, seed: int) -> RunRecord:
    """ROUNDS rounds of every metric that reproductions read."""
    rng = np.random.default_rng(abs(hash((path.name, seed))) % 2**32)
    rise = np.linspace(0.1, 0.9, ROUNDS) + 0.05 * rng.standard_normal(ROUNDS)
    metrics = {name: np.clip(rise, 0.01, 1.0) for name in ("test/accuracy", "participants/accuracy", "random/accuracy")}
    metrics |= dict.fromkeys(
        ("train/loss", "test/loss", "participants/loss", "random/loss", "global/grad_norm"), 2.0 - rise
    )
    metrics["update/diversity"] = 1.0 + rise
    metrics |= {name: np.exp(-5 * rise) for name in ("global/distance", "global/distance_abs")}
    metrics |= {f"test/x{j}": rng.standard_normal(ROUNDS) for j in range(10)}
    metrics |= {
        f"cost/{name}": np.arange(1.0, ROUNDS + 1) for name in ("uplink_floats", "downlink_floats", "local_steps")
    }
    metrics["time/computation"] = np.arange(1.0, ROUNDS + 1)
    return RunRecord(
        path, config | {"seed": seed, "rounds": ROUNDS}, np.arange(ROUNDS), metrics, {"status": "finished"}
    )
