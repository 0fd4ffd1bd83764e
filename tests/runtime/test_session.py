"""The parts of a session that decide when a state is saved, when a run ends, and which files are left out."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from raylfl.heterogeneity.partition.base import Split
from raylfl.runtime import session
from raylfl.runtime.round.early_stop import EarlyStop
from raylfl.runtime.session import Session, write_records


def parts(every=3, rounds=10, **stop):
    """A session without a run; `saved` notes the rounds after which its state is saved."""
    config = SimpleNamespace(
        checkpoint=SimpleNamespace(every=every),
        top=SimpleNamespace(rounds=rounds),
        stop=SimpleNamespace(metric=None, mode="auto"),
    )
    here, saved = object.__new__(Session), []
    here.experiment = SimpleNamespace(config=config)
    here.early, here._best_model = EarlyStop(config.stop), None
    here.federation = SimpleNamespace(state=SimpleNamespace(round=0, server={"x": torch.zeros(2)}))
    here.federation.collect = lambda: here.federation.state
    here.checkpoints, here.backend = SimpleNamespace(save=lambda state, backend: saved.append(state.round)), None
    return here, saved


@pytest.mark.parametrize(
    ("every", "ends", "expected"),
    [(3, None, [3, 6, 9, 10]), (5, None, [5, 10]), (0, None, [10]), (1, None, [*range(1, 11)]), (4, 6, [4, 6])],
)
def test_a_state_is_saved_every_so_many_rounds_and_after_the_last(every, ends, expected):
    here, saved = parts(every)
    for r in range(1, 11):
        here.federation.state.round = r
        if r == ends:
            here.end("enough")
        here._checkpoint_if_due()
        if r == ends:
            break
    assert saved == expected


def test_the_first_reason_to_end_holds_and_none_is_no_reason():
    here, _ = parts()
    here.end(None)
    assert here.early.reason is None
    here.end("first")
    here.end("second")
    here.end(None)
    assert here.early.reason == "first"


def test_parameters_that_were_handed_out_do_not_change_with_the_run():
    here, _ = parts()
    given = here.params
    here.federation.state.server["x"].add_(1.0)
    assert given.tolist() == [0.0, 0.0]
    assert here.params.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("samples", "clients"), [(6, 3), (5, 3), (6, 2), (0, 0)])
def test_files_of_more_samples_or_clients_than_the_limits_are_left_out(monkeypatch, samples, clients):
    monkeypatch.setattr(session, "MOST_SAMPLES", samples)
    monkeypatch.setattr(session, "MOST_CLIENTS", clients)
    split = Split([np.array([0, 3]), np.array([1, 2, 5]), np.array([4])])
    run = SimpleNamespace(written={})
    run.write, run.write_config = run.written.__setitem__, lambda resolved: run.written.update(config=resolved)
    experiment = SimpleNamespace(
        config=SimpleNamespace(resolved={"rounds": 1}),
        split=split,
        labels=np.array([7, 7, 9, 7, 9, 9]),
        clients=3,
        sources={},
    )
    experiment.logged_directions, experiment.client_names = {}, None
    write_records(experiment, run)
    indices = {"partition.json": '{\n"0": [0, 3],\n"1": [1, 2, 5],\n"2": [4]\n}\n'}
    counts = {"partition_counts.json": '{"classes": [7, 9], "counts": [[2, 0], [1, 2], [0, 1]]}'}
    kept = (indices if samples >= 6 else {}) | (counts if clients >= 3 else {})
    assert run.written == {"config": {"rounds": 1}} | kept
