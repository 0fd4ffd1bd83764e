"""The resources of a trial, and the arithmetic in refusals."""

from __future__ import annotations

import pytest

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig
from raylfl.execution.resources import bundles, capacity, choose_need, choose_workers


def test_a_trial_has_a_bundle_for_its_server_and_one_per_worker():
    assert bundles(RuntimeConfig(cpus_per_worker=2), 3) == [{"CPU": 0.0}, {"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 2.0}]
    gpus = bundles(RuntimeConfig(gpus_per_worker=0.5), 1)
    assert gpus == [{"CPU": 0.0}, {"CPU": 1.0, "GPU": 0.5}]
    assert bundles(RuntimeConfig(backend="local", cpus_per_worker=0.5), 4) == [{"CPU": 0.5}]
    assert bundles(RuntimeConfig(), 2, processes=2) == [{"CPU": 0.0}, *[{"CPU": 1.0}] * 4]
    assert bundles(RuntimeConfig(backend="local"), 1, processes=3) == [{"CPU": 1.0}] * 3


def test_two_trials_of_two_half_workers_fill_two_cpus():
    trial = bundles(RuntimeConfig(cpus_per_worker=0.5), 2)
    assert capacity(trial, [{"CPU": 2.0}]) == 2
    assert capacity(trial, [{"CPU": 2.9}]) == 2


def test_a_bundle_is_on_one_node():
    three = bundles(RuntimeConfig(cpus_per_worker=3), 2)
    assert capacity(three, [{"CPU": 4.0}, {"CPU": 4.0}]) == 1  # one worker on each
    assert capacity(bundles(RuntimeConfig(cpus_per_worker=5), 1), [{"CPU": 4.0}, {"CPU": 4.0}]) == 0


def test_fractions_of_a_gpu_do_not_reach_across_two():
    trial = bundles(RuntimeConfig(gpus_per_worker=0.6, cpus_per_worker=1), 1)
    assert capacity(trial, [{"CPU": 8.0, "GPU": 2.0}]) == 2  # not three: 3 x 0.6 = 1.8
    assert capacity(bundles(RuntimeConfig(gpus_per_worker=0.25), 2), [{"CPU": 8.0, "GPU": 1.0}]) == 2


def test_without_a_number_of_workers_one_serves_a_trial_or_those_that_concurrent_leaves_room_for():
    runtime, nodes = RuntimeConfig(), [{"CPU": 8.0}]
    assert choose_workers(runtime, 100, None, nodes) == 1
    assert choose_workers(runtime, 100, 2, nodes) == 4
    assert choose_workers(runtime, 3, 2, nodes) == 3  # no more than clients
    assert choose_workers(runtime, 100, 20, nodes) == 1  # twenty do not fit at once: eight do
    assert choose_workers(RuntimeConfig(workers=5), 100, 2, nodes) == 5


@pytest.mark.parametrize(
    ("settings", "concurrent", "processes"),
    [(9, None, 1), (4, None, 2), (2, None, 4), (1, None, 5), (9, 1, 5), (9, 2, 4), (9, 8, 1), (2, 8, 4)],
)
def test_seeds_get_processes_of_their_own_where_all_settings_that_run_at_once_leave_room(
    settings, concurrent, processes
):
    """Five seeds a setting on eight CPUs."""
    local = RuntimeConfig(backend="local")
    assert choose_need(local, 10, 5, settings, concurrent, [{"CPU": 8.0}]).processes == processes


def test_workers_share_what_the_processes_of_the_seeds_leave():
    need = choose_need(RuntimeConfig(), 100, 2, 3, 2, [{"CPU": 12.0}])
    assert (need.processes, need.workers, len(need.bundles)) == (2, 3, 7)
    assert choose_need(RuntimeConfig(workers=4), 100, 2, 3, 2, [{"CPU": 12.0}]).processes == 1


def test_what_cannot_fit_is_refused_with_the_arithmetic():
    with pytest.raises(BadConfig, match=r"needs 3 x 2 CPUs = 6, but the cluster has 4 CPUs, at most 4 CPUs on one"):
        choose_workers(RuntimeConfig(workers=3, cpus_per_worker=2), 10, None, [{"CPU": 4.0}])
    with pytest.raises(BadConfig, match=r"4 x 1 CPUs = 4 and 4 x 1 GPUs = 4, but the cluster has 8 CPUs and 2 GPUs"):
        choose_workers(RuntimeConfig(workers=4, gpus_per_worker=1), 10, None, [{"CPU": 8.0, "GPU": 2.0}])
    with pytest.raises(BadConfig, match=r"8 CPUs on 2 nodes, at most 4 CPUs on one"):
        choose_workers(RuntimeConfig(workers=1, cpus_per_worker=5), 10, None, [{"CPU": 4.0}, {"CPU": 4.0}])


@pytest.mark.parametrize(
    ("nodes", "share"),
    [
        ([{"CPU": 8.0}], 0.0),
        ([{"CPU": 8.0, "GPU": 1.0}], 1 / 8),
        ([{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 3.0}], 1 / 4),
        ([{"CPU": 2.0, "GPU": 4.0}], 1.0),
    ],
)
def test_trials_share_the_gpus_in_as_many_parts_as_fill_the_cpus(nodes, share):
    need = choose_need(RuntimeConfig(backend="local"), 4, 1, 8, None, nodes)
    assert need.gpus == pytest.approx(share)
    fixed = choose_need(RuntimeConfig(backend="local", gpus_per_worker=0.0), 4, 1, 8, None, nodes)
    assert fixed.gpus == 0.0
