"""A round is measured and yielded during the next round's local work; nothing is lost if the next round fails."""

import time

import pytest

from raylfl.config.load import load_config
from raylfl.core.deferred import Deferred
from raylfl.errors import RaylflError
from raylfl.experiment.assemble import assemble
from raylfl.runtime.round.loop import Federation
from raylfl.runtime.round.plan import Planner
from raylfl.runtime.workers.backend import LocalBackend
from tests.runtime.faults import carry_out, checkpoints, outcome
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.runtime.tiny import Net


class Watched(LocalBackend):
    """Records the calls and the awaited results, in order."""

    def __init__(self, setup):
        super().__init__(setup)
        self.seen = []

    def _watched(self, what, pending):
        self.seen.append(f"ask for {what}")

        def wait():
            self.seen.append(f"wait for {what}")
            return pending.result()

        return Deferred(wait)

    def run(self, tasks, down):
        return self._watched(f"work {tasks[0].round}", super().run(tasks, down))

    def run_ring(self, tasks, down):
        return self._watched(f"work {tasks[0].round}", super().run_ring(tasks, down))

    def evaluate(self, down, chunks):
        return self._watched("evaluation", super().evaluate(down, chunks))


@pytest.mark.parametrize("algorithm", ["fedavg", "sfl", "fedacs"])
def test_the_next_rounds_work_is_out_before_a_round_is_waited_for(algorithm):
    experiment = assemble(load_config(TINY, [f"algorithm.name={algorithm}", "rounds=3", "eval.every=1"]))
    backend = Watched(experiment.setup)
    for metrics, *_ in Federation.of(experiment, backend).rounds(3):
        backend.seen.append(f"row {metrics['round']}")
    backend.close()
    assert backend.seen == [
        "ask for work 0",
        "wait for work 0",
        *("ask for evaluation", "ask for work 1", "wait for evaluation", "row 0", "wait for work 1"),
        *("ask for evaluation", "ask for work 2", "wait for evaluation", "row 1", "wait for work 2"),
        *("ask for evaluation", "wait for evaluation", "row 2"),
    ]


def test_a_round_that_cannot_be_drawn_costs_none_before_it(tmp_path, monkeypatch):
    carry_out(TINY, tmp_path / "clean", ["rounds=5"])
    draw = Planner.draw

    def fails(self, r, server):
        if r == 3:
            raise ValueError("no cohort is known")
        return draw(self, r, server)

    with monkeypatch.context() as patched:
        patched.setattr(Planner, "draw", fails)
        with pytest.raises(ValueError, match="no cohort is known"):
            carry_out(TINY, tmp_path / "run", ["rounds=5", "checkpoint.every=0"])
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert checkpoints(tmp_path / "run") == ["round_000003"]
    carry_out(TINY, tmp_path / "run", ["rounds=5", "checkpoint.every=0"], resume=True)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "clean")


class Sleepy(Net):
    """A model that sleeps on a whole test set, but not on the two samples of the probe steps at start-up."""

    def test_step(self, batch, batch_idx):
        if len(batch[0]) > 2:
            time.sleep(60)
        self.log("loss", self.training_step(batch, batch_idx))


def test_an_evaluation_that_hangs_ends_the_run_with_its_limit(tmp_path):
    model = {"class_path": "tests.runtime.test_overlap.Sleepy"}
    with pytest.raises(RaylflError, match=r"evaluation: no answer within 0.5 s \(runtime.client_timeout\)"):
        carry_out({**TINY, "model": model}, tmp_path / "run", ["runtime.client_timeout=0.5"])
