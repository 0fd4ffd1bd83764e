"""Heat-maps of partitions, as in SFL's figure 7."""

from __future__ import annotations

import numpy as np

from papers.partitions import heat_maps


def test_a_heat_map_shows_the_samples_of_each_client_and_class():
    counts = {name: np.random.default_rng(0).integers(1, size, (10, 10)) for name, size in (("a", 9), ("b", 400))}
    figure = heat_maps(counts)
    maps = [ax for ax in figure.axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in maps] == ["a", "b"]
    for ax, samples in zip(maps, counts.values(), strict=True):
        drawn = ax.images[0].get_array()
        assert sorted(drawn.ravel()) == sorted(samples.ravel())
