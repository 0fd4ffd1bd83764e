"""A worker's measurements: evaluations of the module on chunks of samples, and clients' losses and full gradients."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from raylfl.core.algorithm import State
from raylfl.core.arrays import Floats, Ints
from raylfl.core.keyed import keyed_int
from raylfl.core.oracle import Batch, LoopOracle, private_randomness, seed_everything
from raylfl.core.reduce import column, tree_sum
from raylfl.core.samples import BatchSource
from raylfl.core.torch_state import torch_defaults
from raylfl.experiment.parts import BUFFERS, WorkerSetup
from raylfl.runtime.workers.attributes import Attributes
from raylfl.runtime.workers.evaluate import Evaluator
from raylfl.runtime.workers.logged import Logged
from raylfl.runtime.workers.task import Chunk


class ModelMeasures:
    """Measures the module at the parameters of a broadcast; afterwards the module is in evaluation mode."""

    def __init__(
        self,
        setup: WorkerSetup,
        evaluator: Evaluator,
        attributes: Attributes,
        sources: Mapping[str, BatchSource | None],
        loop: LoopOracle,
    ):
        """Measurements of a module, whose gradients `loop` computes. sources: kind (test, val, train) -> its source."""
        self.setup, self.evaluator, self.attributes = setup, evaluator, attributes
        self.sources, self.loop, self.flat = sources, loop, loop.flat

    def load(self, broadcast: State) -> None:
        """Loads the parameters of a broadcast into the module, and its buffers: the initial ones if it has none."""
        self.flat.load(broadcast["x"].to(self.flat.params.device))
        self._reset(broadcast)

    def _reset(self, broadcast: State) -> None:
        """Restores the module's attributes, and the buffers of the broadcast: no measurement affects the next."""
        self.attributes.restore()
        buffers = broadcast.get(BUFFERS)
        self.flat.write_buffers(None if buffers is None else buffers.to(self.flat.params.device))

    @torch_defaults()
    def evaluate(self, broadcast: State, chunks: Sequence[Chunk]) -> list[Logged]:
        """Evaluates the broadcast model; returns the values that the module logs over each chunk."""
        self.load(broadcast)
        self.flat.module.eval()
        logged = []
        with private_randomness(), self.loop.autocast():
            for chunk in chunks:
                self._reset(broadcast)
                self._seed(chunk.indices)
                with self.loop.evaluating():
                    logged.append(self.evaluator.measure(chunk.kind, self._batches(chunk), chunk.first))
        return logged

    def _batches(self, chunk: Chunk) -> Iterator[Batch]:
        source, size = self.sources[chunk.kind], self.setup.eval_batch_size
        assert source is not None
        for k in range(0, len(chunk.indices), size):
            part = chunk.indices[k : k + size]
            self._seed(part)
            yield source.batch(part)

    def _seed(self, samples: Ints) -> None:
        """Seeds the global random generators by the run's seed and the first of these indices, not by the worker."""
        seed_everything(keyed_int(self.setup.seed, "evaluate", *samples[:1]))

    @torch_defaults()
    def objective(self, broadcast: State, groups: Sequence[Sequence[int]]) -> list[tuple[float, Tensor]]:
        """As `Backend.objective`."""
        weights = self.setup.population.weights
        with self._at(broadcast) as x:
            sums = [self.of(x, group, weights[list(group)], self.attributes.restore) for group in groups]
            return [(loss, gradient.cpu()) for loss, gradient in sums]

    @torch_defaults()
    def client_objectives(self, broadcast: State, clients: Sequence[int]) -> list[tuple[float, Tensor]]:
        """(f_i(x), grad f_i(x) [d]) of each client i, at the broadcast x; f_i: mean loss over all its samples."""
        with self._at(broadcast) as x:
            results = [self.of_client(x, client, self.attributes.restore) for client in clients]
            return [(float(loss), gradient.cpu()) for loss, gradient in results]

    @contextmanager
    def _at(self, broadcast: State) -> Iterator[Tensor]:
        """A context with a broadcast's parameters and buffers in the module; gives a copy of the parameters [d]."""
        self.load(broadcast)
        with private_randomness(keyed_int(self.setup.seed, "evaluate")):
            yield self.flat.params.clone()

    def of(
        self, x: Tensor, clients: Sequence[int], weights: Floats, reset: Callable[[], object] = lambda: None
    ) -> tuple[float, Tensor]:
        """(sum w_i f_i(x), sum w_i grad f_i(x) [d]) over these clients i, at the parameters x [d].

        weights: w_i of each of these clients; f_i: mean loss over all samples of client i; reset: called before each.
        """
        losses, rows = zip(*(self.of_client(x, c, reset) for c in clients), strict=True)
        return weighted(torch.stack(losses).cpu().numpy(), rows, weights)

    def of_client(self, x: Tensor, client: int, reset: Callable[[], object]) -> tuple[Tensor, Tensor]:
        """(f_i(x), grad f_i(x) [d]) at x [d] in evaluation mode; f_i: mean loss over the whole shard of client i.

        It does not depend on other clients: all begin with the same buffers, which are restored afterwards.
        """
        shard, buffers, size = self.setup.shards[client], self.flat.read_buffers(), self.setup.eval_batch_size
        source = self.sources["train"]
        assert source is not None
        reset()
        self.flat.module.eval()
        loss, gradient = x.new_zeros((), dtype=torch.float64), torch.zeros_like(x)
        for start in range(0, len(shard), size):
            batch = source.batch(shard[start : start + size])
            with self.evaluator.recorder.into(None):  # drops what the module logs
                losses, rows = self.loop.gradients(x[None], [batch], lambda c: 0)
            loss += losses[0].double() * batch.size / len(shard)
            gradient.add_(rows[0], alpha=batch.size / len(shard))
        self.flat.write_buffers(buffers)
        return loss, gradient


def weighted(losses: Floats, gradients: Sequence[Tensor], weights: Floats) -> tuple[float, Tensor]:
    """(sum w_i f_i, sum w_i grad f_i [d]) from the losses f_i [C], gradients grad f_i [d] and weights w_i [C]."""
    rows = torch.stack(list(gradients))
    return float(np.dot(weights, losses)), tree_sum(rows * column(weights, rows))


class WeightedOracle(LoopOracle):
    """An oracle for the exact gradient of F = sum_i w_i f_i over all N clients; it ignores mini-batches."""

    def __init__(self, full: ModelMeasures, weights: Floats):
        super().__init__(full.flat, full.loop.autocast)
        self.full, self.weights = full, weights

    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        at = x[0].clone()
        loss, gradient = self.full.of(at, range(len(self.weights)), self.weights)
        self.flat.load(x[0])
        return x.new_full((1,), loss, dtype=torch.float64), gradient[None]
