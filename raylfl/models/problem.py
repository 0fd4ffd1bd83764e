"""The objectives of the papers' synthetic problems; `raylfl.data` contains the samples and optima."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from torch import Tensor

from raylfl.components.options import Doc, Ge
from raylfl.models import MODELS
from raylfl.models.base import Problem

Dim = Annotated[int, Ge(1), Doc("the length of x")]


@MODELS.register("ridge", paper="FOCUS fig. 4")
class Ridge(Problem):
    """Ridge regression without bias: f_i(x) = sum_k (a_ik.x - b_ik)^2 + lam |x|^2 over the client's K rows.

    A row is one sample (a_ik, b_ik); batches are (a [B, d], b [B]). The loss has K times the mean over the batch in
    place of the sum: a full batch gives f_i itself, a mini-batch an unbiased gradient.
    rows_per_client: the number K of rows.
    lam: the regularisation; 0: linear regression.
    """

    from_data: ClassVar[tuple[str, ...]] = ("dim", "rows_per_client", "lam")

    def __init__(
        self,
        dim: Dim = 100,
        rows_per_client: Annotated[int, Ge(1)] = 100,
        lam: Annotated[float, Ge(0)] = 0.01,
        x0: float = 0.0,
        lr: float = 2e-4,
    ):
        super().__init__(dim, x0, lr)
        self.rows_per_client, self.lam = rows_per_client, lam

    def objective(self, batch: Sequence[Tensor]) -> Tensor:
        """The loss of a batch, K mean_k (a_k.x - b_k)^2 + lam |x|^2, over its samples k; K: rows_per_client."""
        a, b = batch
        return self.rows_per_client * (a @ self.x - b).square().mean() + self.lam * self.x.square().sum()


@MODELS.register("quadratic", paper="SFL fig. 1; FedACS fig. 4")
class Quadratic(Problem):
    """Separable quadratics: sum_j (a_j x_j^2 + b_j x_j) + c, averaged over the batch.

    Batches are (a [B, d], b [B, d], c [B]). SFL's A x^2 + B x is the sample (A, B, 0), FedACS's |x - E|^2/2 the sample
    (1/2, -E, |E|^2/2).
    """

    def __init__(self, dim: Dim = 1, x0: float = 0.0, lr: float = 0.1):
        super().__init__(dim, x0, lr)

    def objective(self, batch: Sequence[Tensor]) -> Tensor:
        """The loss of a batch, mean_k (sum_j (a_kj x_j^2 + b_kj x_j) + c_k) over its samples k."""
        a, b, c = batch
        return ((a * self.x.square() + b * self.x).sum(dim=-1) + c).mean()


@MODELS.register("dense_quadratic")
class DenseQuadratic(Problem):
    """Dense quadratics: x^T H x / 2 - b^T x, averaged over the batch.

    Batches are (H [B, d, d] symmetric, b [B, d]).
    """

    def __init__(self, dim: Dim = 10, x0: float = 0.0, lr: float = 0.1):
        super().__init__(dim, x0, lr)

    def objective(self, batch: Sequence[Tensor]) -> Tensor:
        """The loss of a batch, mean_k (x^T H_k x / 2 - b_k^T x) over its samples k."""
        h, b = batch
        return (0.5 * (h @ self.x) @ self.x - b @ self.x).mean()
