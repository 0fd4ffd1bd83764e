"""Heat-maps of partitions, as in SFL's figure 7."""

from __future__ import annotations

import numpy as np

from papers.sfl_partitions import heat_maps


def test_heat_maps_share_one_scale():
    draw = np.random.default_rng(0)
    panels = {name: draw.integers(0, size, (10, 10)) for name, size in zip("abcd", (9, 400, 30, 50), strict=True)}
    figure = heat_maps(panels)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["a", "b", "c", "d"]
    written = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    assert written == {(i, c): str(panels["a"][i, c]) for i, c in np.argwhere(panels["a"])}
    assert {ax.images[0].norm.vmax for ax in figure.axes} == {panels["b"].max()}
