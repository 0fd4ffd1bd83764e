"""Settings proposed by Optuna: a study for each cell, and no setting twice, also after a pause."""

import math
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from ray.tune.search import Searcher

from raylfl.report.labels import canonical
from raylfl.tune.journal import Journal, Trial
from raylfl.tune.studies import Studies
from tests.tune.sweeps import sweep_of

pytest.importorskip("optuna")

SPACE = {
    "algorithm.name": {"grid": ["fedavg", "focus"]},
    "local.lr": [{"loguniform": [1e-3, 1e-1], "when": {"algorithm.name": "focus"}}, {"loguniform": [1e-2, 1.0]}],
    "local.steps": {"randint": [1, 9]},
    "partition": {"choice": [{"name": "iid"}, {"name": "dirichlet", "alpha": 0.1}]},
}


def loss(values):
    """Smallest at lr 0.1 for fedavg and 0.01 for focus, with 4 steps."""
    best = -1 if values["algorithm.name"] == "fedavg" else -2
    return abs(math.log10(values["local.lr"]) - best) + 0.1 * abs(values["local.steps"] - 4)


class Search:
    """A sweep with search=optuna, whose settings are carried out one after the other by `objective`."""

    def __init__(self, folder, samples, space=SPACE, objective=loss, seed=0):
        folder.mkdir(exist_ok=True)
        changes = {"space": space, "search": "optuna", "samples": samples, "metric": "train/loss", "seed": seed}
        self.sweep, self.folder, self.objective = sweep_of(folder, **changes), folder, objective
        self.said: list[str] = []
        self.scores: dict[str, float] = {}

    def studies(self, scores):
        journal = Journal(self.folder)

        def config(trial):
            return {"setting": asdict(trial)}

        def plan(setting, values):
            trial = Trial(f"{setting:03d}", setting, [0], values, ["run"])
            journal.plan(trial)
            return trial

        trials, say = list(journal.trials.values()), self.said.append
        return Studies(SimpleNamespace(sweep=self.sweep, trials=trials, plan=plan, config=config, say=say), scores)

    def propose(self, most=1000):
        """Values of the next settings, in order, after a start that knows only journal and scores."""
        studies, found = self.studies(self.scores), []
        for k in range(most):
            config = studies.suggest(f"ray{k}")
            if config == Searcher.FINISHED:
                assert studies.complete
                break
            name, values = config["setting"]["id"], config["setting"]["values"]
            self.scores[name] = self.objective(values)
            studies.on_trial_complete(f"ray{k}", {"score": self.scores[name]})
            found.append(values)
        return found


def test_each_cell_has_its_samples_and_settings_follow_the_conditions(tmp_path):
    found = Search(tmp_path, 15).propose()
    assert [values["algorithm.name"] for values in found] == ["fedavg", "focus"] * 15  # the cells take turns
    for values in found:
        low, high = (1e-3, 1e-1) if values["algorithm.name"] == "focus" else (1e-2, 1.0)
        assert low <= values["local.lr"] <= high
        assert values["local.steps"] in range(1, 9)
        assert values["partition"] in ({"name": "iid"}, {"name": "dirichlet", "alpha": 0.1})


def test_the_search_is_seeded_and_each_cell_learns(tmp_path):
    found = Search(tmp_path / "a", 40).propose()
    assert Search(tmp_path / "b", 40).propose(20) == found[:20]
    assert Search(tmp_path / "c", 40, seed=1).propose(4) != found[:4]
    for name in ("fedavg", "focus"):
        losses = [loss(values) for values in found if values["algorithm.name"] == name]
        assert sum(losses[-10:]) < sum(losses[:10])


@pytest.mark.parametrize("pauses", [[1], [3, 1, 7], [11, 2]])
def test_an_interrupted_search_never_proposes_what_it_ran(tmp_path, pauses):
    """Each start knows only the journal; together they propose every setting once."""
    search = Search(tmp_path, 12)
    found = [values for most in [*pauses, 1000] for values in search.propose(most)]
    assert len(found) == 24
    assert len({canonical(values) for values in found}) == 24
    assert [trial.values for trial in Journal(tmp_path).trials.values()] == found


def test_a_setting_that_was_interrupted_is_carried_out_first(tmp_path):
    search = Search(tmp_path, 4)
    studies = search.studies({})
    begun = [studies.suggest(f"ray{k}")["setting"]["values"] for k in range(3)]
    again = search.propose()
    assert canonical(sorted(map(canonical, again[:3]))) == canonical(sorted(map(canonical, begun)))
    assert len({canonical(values) for values in again}) == 8


def test_a_resumed_search_learns_from_all_earlier_settings(tmp_path):
    search = Search(tmp_path, 10)
    found = search.propose(14)
    studies = search.studies(search.scores)
    for study in studies.studies:
        own = [values for values in found if values["algorithm.name"] == study.cell["algorithm.name"]]
        assert [trial.value for trial in study.study.trials] == pytest.approx([loss(values) for values in own])
        rates = [next(v for key, v in trial.params.items() if "local.lr" in key) for trial in study.study.trials]
        assert rates == pytest.approx([values["local.lr"] for values in own])


def test_a_space_of_few_settings_is_exhausted_without_repetition(tmp_path):
    """Six settings in each of two cells, of which ten are wanted; the second start has nothing left to do."""
    space = {
        "algorithm.name": {"grid": ["fedavg", "focus"]},
        "local.lr": {"choice": [0.1, 0.2, 0.3]},
        "local.steps": {"choice": [1, 4]},
    }
    search = Search(tmp_path, 10, space)
    found = search.propose(7) + search.propose()
    assert len(found) == len({canonical(values) for values in found}) == 12
    assert search.said == [
        f"all settings with algorithm.name={name} have run: 4 fewer than samples=10" for name in ("fedavg", "focus")
    ]
    assert search.propose() == []
