"""The number of workers for which a cluster has resources."""

from __future__ import annotations

import pytest

from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.errors import BadConfig
from raylfl.runtime.ray.resources import count_workers, workers_that_fit


def test_resources_that_cannot_fit_are_refused_with_the_arithmetic():
    with pytest.raises(BadConfig, match=r"3 x 2 CPUs = 6, but the cluster has 4 CPUs: at most 2 workers fit"):
        count_workers(RuntimeConfig(workers=3, cpus_per_worker=2.0), 100, [{"CPU": 4.0}])
    with pytest.raises(BadConfig, match=r"1 x 0.5 GPUs = 0.5, but the cluster has 8 CPUs and 0 GPUs"):
        count_workers(RuntimeConfig(gpus_per_worker=0.5), 100, [{"CPU": 8.0}])
    assert count_workers(RuntimeConfig(gpus_per_worker=0.25), 100, [{"CPU": 16.0, "GPU": 2.0}]) == 8
    assert count_workers(RuntimeConfig(gpus_per_worker=1.0), 100, [{"CPU": 16.0, "GPU": 5.0}]) == 5
    assert count_workers(RuntimeConfig(), 3, [{"CPU": 64.0}]) == 3


def test_a_worker_has_its_resources_on_one_node():
    nodes = [{"CPU": 3.0, "GPU": 1.0}] * 3
    assert count_workers(RuntimeConfig(cpus_per_worker=2.0), 100, nodes) == 3
    with pytest.raises(BadConfig, match=r"4 x 2 CPUs = 8, but the cluster has 9 CPUs on 3 nodes: at most 3 workers"):
        count_workers(RuntimeConfig(workers=4, cpus_per_worker=2.0, gpus_per_worker=0.0), 100, nodes)
    with pytest.raises(BadConfig, match=r"9 CPUs and 1.8 GPUs on 3 nodes: at most 0 workers fit"):
        count_workers(RuntimeConfig(gpus_per_worker=1.0), 100, [{"CPU": 3.0, "GPU": 0.6}] * 3)
    assert workers_that_fit(RuntimeConfig(cpus_per_worker=4.0), nodes) == 0
