"""The style of figures: palette, line styles, and matplotlib settings (figures.mplstyle).

The colours are from Okabe & Ito (2008), distinguishable for colour-blind readers. Wine and grey replace yellow and
black, which are invisible on a light or a dark page. A method in PREFERRED has the same colour in every report unless
another method of the report already has that colour. Dash and marker distinguish lines in grey print.
"""

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation

from raylfl.report.derived import by_method
from raylfl.report.runs import Group

SHEET = matplotlib.rc_params_from_file(Path(__file__).with_name("figures.mplstyle"), use_default_template=False)
INK, MUTED, GRID = (SHEET[key] for key in ("text.color", "axes.edgecolor", "grid.color"))
PAPER = "#fefefe"  # sheet.py replaces these four by colours of the theme
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#5f6570", "#e69f00", "#56b4e9", "#882255")
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.6), (1.2, 1.4), (6, 1.5, 1.2, 1.5))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
METHODS = ("focus", "sfl", "fedacs", "fedaware", "fedavg", "scaffold", "fedau", "mifa")  # one for each colour
PREFERRED = {method: color for color, method in enumerate(METHODS)}
PREFERRED |= {"fednova": 5, "cafedavg": 6, "feddyn": 6, "fedvarp": 7, "fedyogi": 7}


@dataclass(frozen=True)
class LineStyle:
    """A line style: indices into PALETTE, DASHES and MARKERS.

    thin: whether the line is thin and has no markers.
    """

    color: int = 0
    dash: int = 0
    marker: int = 0
    thin: bool = False

    @property
    def hex(self) -> str:
        return PALETTE[self.color]

    def options(self) -> dict[str, Any]:
        """The style as keyword arguments of `Axes.plot` and `Line2D`."""
        options = {"color": self.hex, "dashes": DASHES[self.dash]}
        if self.thin:
            return {**options, "linewidth": 1.0}
        return {**options, "marker": MARKERS[self.marker], "markeredgewidth": 0}


class Drawing(Figure):
    """A matplotlib figure that is always drawn and saved with the settings of `rc`."""

    def draw(self, renderer: Any) -> None:
        with rc():
            super().draw(renderer)

    def savefig(self, fname: Any, **options: Any) -> None:
        with rc():
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=120)
        return content.getvalue()


class LogTicks(LogFormatterSciNotation):
    """Tick labels of a log axis in plain text, such as 10⁻³ and 2×10⁻³; `rc` switches matplotlib's mathtext off."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        text = re.sub(r"^\$\\mathdefault\{(.*)\}\$$", r"\1", super().__call__(x, pos)).replace(r"\times", "×")
        return re.sub(r"\^\{(.*)\}", lambda found: found[1].translate(_RAISED), text)


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def rc() -> AbstractContextManager[None]:
    """A context manager with the matplotlib settings with which all figures are drawn and saved."""
    return matplotlib.rc_context(SHEET)


def line_styles(groups: Sequence[Group], methods: Mapping[str, LineStyle]) -> dict[Group, LineStyle]:
    """The style of every setting of one figure: colour by method, dash and marker by setting within the method.

    If all settings are of one method, they have different colours instead.
    """
    parts = by_method(groups)
    if len(parts) == 1 and len(groups) > 1:
        return {group: _nth(index) for index, group in enumerate(groups)}
    styles = {}
    for method, own in parts.items():
        base = methods[method]
        for index, group in enumerate(own):
            dash, marker = (base.dash + index) % len(DASHES), (base.marker + index) % len(MARKERS)
            styles[group] = LineStyle(base.color, dash, marker)
    return styles


def method_styles(methods: Sequence[str]) -> dict[str, LineStyle]:
    """The style of every method of a report, all different for up to 32 methods.

    A method has its preferred colour (PREFERRED), or the first free one if another method already has it. If no colour
    is free, colours repeat with another dash.
    """
    taken: dict[str, int] = {}
    for method in sorted(methods, key=lambda name: PREFERRED.get(name, len(PALETTE))):
        wish, used = PREFERRED.get(method), set(taken.values())
        free = [slot for slot in range(len(PALETTE)) if slot not in used]
        if wish is None or wish in used:
            wish = free[0] if free else len(taken)
        taken[method] = wish
    return {method: _nth(slot) for method, slot in taken.items()}


def _nth(index: int) -> LineStyle:
    """Style number `index` of a report. A colour that is used again has another dash and another marker."""
    again = index // len(PALETTE)
    return LineStyle(index % len(PALETTE), again % len(DASHES), (index + 3 * again) % len(MARKERS))
