"""Whether the result of local work is finite, and if not, the name of what is not."""

import numpy as np
import torch
from torch import Tensor

from raylfl.core.arrays import Floats
from raylfl.core.flat import FlatModule
from raylfl.core.local import LocalResult
from raylfl.core.reduce import finite_rows
from raylfl.experiment.parts import BUFFERS


def not_finite(flat: FlatModule, before: Tensor, result: LocalResult, squares: Floats | None) -> dict[int, str]:
    """What is not finite in the loss or an upload, by the row of its client; empty if everything is finite.

    flat: the module. before: its buffers at the start of the local work, rows [C, b]. An entry of a buffer that was not
    finite before and has not changed, as in a mask of -inf, counts as finite. A client without local steps needs no
    loss. squares: |U_i|^2 of the clients' updates U_i [C], None if there are no updates. U_i is finite if |U_i|^2 is.
    """
    tally = result.tally
    good = np.isfinite(tally.losses) | np.isnan(tally.last_losses) & (tally.gradients == 0)
    reasons = dict[int, str]()
    for name, rows in result.uploads.items():
        if name == "update" and squares is not None and np.isfinite(squares).all():
            continue
        finite = finite_rows(rows)
        if name == BUFFERS and not bool(finite.all()):
            finite = ~_lost(rows, before).any(dim=1)
        for k in np.flatnonzero(~finite.cpu().numpy()).tolist():
            reasons.setdefault(k, _entry(flat, name, rows[k], before[k]))
    return dict.fromkeys(np.flatnonzero(~good).tolist(), "the loss") | reasons


def _entry(flat: FlatModule, name: str, row: Tensor, before: Tensor) -> str:
    """The first entry of an upload that is not finite, by the path of its parameter or buffer."""
    if name == BUFFERS:
        at = int(_lost(row, before).int().argmax())
        return f"buffer {_owner(at, flat.packing.names, flat.packing.sizes)}"
    at = int((~torch.isfinite(row.reshape(-1))).int().argmax())
    if row.shape != (flat.width,):
        return f"entry {at} of the upload {name}"
    parameter = f"parameter {_owner(at, flat.names, flat.sizes)}"
    return parameter if name in ("update", "x") else f"the upload {name} at {parameter}"


def _lost(after: Tensor, before: Tensor) -> Tensor:
    """The mask of the entries that are not finite and were not the same before."""
    return ~torch.isfinite(after) & (after != before) & ~(torch.isnan(after) & torch.isnan(before))


def _owner(at: int, names: list[str], sizes: list[int]) -> str:
    return names[int(np.searchsorted(np.cumsum(sizes), at, side="right"))]
