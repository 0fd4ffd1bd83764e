"""The vectorised oracle: losses and gradients of several clients in one call, by torch.func.

One forward pass of `training_step` under vmap gives the losses of C clients at their parameters X [C, d]. Row i of the
gradient of the sum of these losses is client i's gradient, because no other client's loss depends on row i. On a GPU
this is many times faster than C passes; on a CPU it is faster only for small models without convolutions.

A module without buffers may define `cohort_losses(parameters, batch)`, which then computes the losses instead of vmap.
Its batched matrix products have less overhead, and work where operators have no vmap rule. The losses of
`cohort_losses` and of vmap differ by rounding. The config and the model decide which of the two is used, never a
timing.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from raylfl.core.batches import fill_up, stack_batches
from raylfl.core.cohort import CohortBuffers, CohortCall, CohortOracle, Rows, compare_client, seeds_itself
from raylfl.core.flat import FlatModule, copy_together
from raylfl.core.oracle import Batch, GradientMode, private_randomness, seed_everything, seed_for
from raylfl.core.reference import ReferenceStep, loss_of
from raylfl.core.samples import sizes_of
from raylfl.core.slots import aligned_rows
from raylfl.core.torch_state import checks_without_symbols
from raylfl.replay.innermost.step import Innermost
from raylfl.replay.innermost.steps import InnermostSteps, takes
from raylfl.replay.proof import Diverged, ProofSchedule
from raylfl.replay.recorded.steps import RecordedSteps
from raylfl.replay.step_log import StepLog

SEEN = 8  # calls of one shape before it is recorded: recording costs as much as eight calls save
TOGETHER = "clients of a call together"
DENSE = GradientMode("cohort", f"{TOGETHER}: dense layers as batched matrix products")


class _Step(nn.Module):
    """A module whose forward pass is `training_step`, for calls by torch.func with given parameters."""

    def __init__(self, module: Any, log: StepLog):
        super().__init__()
        self.module, self.log, self.t = module, log, 0

    def forward(self, *batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """(loss, logged values by name) of the step on a batch."""
        loss = loss_of(self.module.training_step(batch, self.t), self.module)
        return loss, self.log.take()


_StepInput = tuple[Tensor, list[Tensor], tuple[Tensor, ...]]  # x [C, d], buffers, batches [C, B, ...]
_Result = tuple[Tensor, dict[str, Tensor], list[Tensor]]  # losses, logged values, buffers


class VectorizedOracle(CohortOracle):
    """Gradients of C clients by one forward pass for all of them and one backward pass.

    A call with `lanes` has all its clients in one unit of `LaneSteps`, in fixed memory for `count` clients: `params`.
    """

    together = True

    def __init__(
        self,
        flat: FlatModule,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
        by_hand: bool = True,
        log: StepLog | None = None,
        step: str = "auto",
    ):
        """An oracle of the module `flat.module`.

        autocast: makes the precision context of the forward passes. by_hand: whether to use batched matrix products
        instead of vmap where possible, by the model's own `cohort_losses` or by a translation of the step's recorded
        calls. log: receives the values that `training_step` logs. step: `autograd` (recorded steps are never replayed),
        `auto` (recorded steps are replayed on CPUs where possible) or `recorded` (raises BadConfig for a step that
        cannot be replayed).
        """
        super().__init__(flat)
        self.autocast, self.log, self.buffers = autocast, log or StepLog(), CohortBuffers(flat)
        self.release()
        self.step = _Step(flat.module, self.log)
        self.parameter_names = names_of(flat.parameters, self.step)
        self.buffer_names = names_of(flat.buffers, self.step, "_buffers")
        offered = getattr(flat.module, "cohort_losses", None)  # looked up once, as it searches the layers
        self.cohort_losses: Any = offered if by_hand and not flat.buffers else None
        self.forward = self._by_hand if self.cohort_losses else vmap(self._loss, randomness="different")
        self.reference, self.schedule = ReferenceStep(flat, autocast), ProofSchedule()
        plain = by_hand and autocast is nullcontext and flat.params.device.type == "cpu"
        self.innermost = InnermostSteps(flat.module, cohort=True) if plain else None
        self._weights: list[Tensor] = []
        self._assigned: list[tuple[Tensor, Tensor]] = []  # (a buffer, the tensor that the last step assigned to it)
        self.must_record = step == "recorded"
        self.rows = StepLog()  # calls of `self.log` with one value a client
        self.steps = RecordedSteps(
            *(flat.module, flat.parameters, self.losses, self._gradients, self.rows),
            seen=SEEN,
        )
        if step == "autograd":
            self.steps.refusal = f"runtime.step={step}"

    def _loss(self, parameters: list[Tensor], buffers: list[Tensor], batch: tuple[Tensor, ...]) -> _Result:
        """(loss, logged values, new buffers) of one client's step; vmap maps this function over clients."""
        named = {name: parameters[k] for name, k in self.parameter_names}
        named |= {name: buffers[k] for name, k in self.buffer_names}
        loss, logged = functional_call(self.step, named, batch, tie_weights=False)
        # functional_call puts the buffers that the step assigned into `named`
        new_buffers = {k: named[name] for name, k in reversed(self.buffer_names)}
        return loss, logged, [new_buffers[k] for k in range(len(buffers))]

    def _by_hand(self, parameters: list[Tensor], buffers: list[Tensor], batch: tuple[Tensor, ...]) -> _Result:
        return self.cohort_losses(dict(zip(self.flat.names, parameters, strict=True)), batch), {}, []

    def doubt(self) -> None:
        super().doubt()
        self.steps.doubt()
        self.schedule.doubt()

    def workspace(self, count: int) -> Tensor:
        if self.lanes is None:
            return self.flat.params.new_empty(count, self.flat.width)
        if count > self.count:
            self.params, self.count = aligned_rows(count, self.width, self.flat.params), count
        self.held = self.params
        return self.params[:count]

    def take(self, rows: slice, content: Any, t: int) -> tuple[Tensor, Tensor]:
        """As in `CohortOracle`, for modules without buffers."""
        x = self.params[rows]
        taken = self.steps.reference((x, [], tuple(part.unflatten(0, (len(x), -1)) for part in content)), t)
        self.log.values = dict(self.rows.values)
        return taken

    def prove(self, rows: slice, content: Any, t: int, seed: int) -> None:
        """Compares the step that `take` would take with the reference; raises Diverged if a result differs."""
        x, nothing = self.params[rows].clone(), self.params.new_empty(0)
        self.t, content = t, tuple(part.unflatten(0, (len(x), -1)) for part in content)
        seed_everything(seed)
        generators = self._generators()
        call = self._again(CohortCall(x, content, [], seed, nothing, nothing, [], {}), x)
        self.schedule.comparisons += 1
        self._prove(call, draws=not all(map(torch.equal, generators, self._generators())))

    def state(self, rows: slice) -> list[Tensor]:
        return [self.params[rows]]

    def release(self) -> None:
        self.params, self.count = aligned_rows(0, self.width, self.flat.params), 0

    def gradients(self, x: Tensor, batches: Sequence[Batch], seeds: Callable[[int], int]) -> tuple[Tensor, Tensor]:
        """(losses [C], gradients [C, d]); batches of unequal sizes are filled up, or take one forward pass per size.

        The global random generators are seeded once per forward pass, with seeds(k) of its first client k.
        """
        sizes = sizes_of(batches)
        self.buffers.fill(len(batches))
        if len(set(sizes)) == 1:
            return self._together(x, batches, partial(seeds, 0), slice(len(batches)))
        possible = self.innermost is not None and self.innermost.possible
        content = fill_up(batches, sizes) if possible else None
        if content is not None and (dense := self._dense(content, sizes)):
            return self._through(dense, x, content, seeds, sizes)
        all_losses, all_rows = x.new_empty(len(batches)), torch.empty_like(x)
        logged: dict[str, Tensor] = {}
        for size in sorted(set(sizes)):
            group = [k for k, s in enumerate(sizes) if s == size]
            part = x[group]
            losses, g = self._together(part, [batches[k] for k in group], partial(seeds, group[0]), group)
            x[group] = part  # a step may change parameters in place
            all_losses[group], all_rows[group] = losses.to(all_losses), g
            for name, values in self.log.take().items():
                rows = logged.setdefault(name, values.new_full((len(batches),), torch.nan))
                rows[group] = values
        self.log.values = logged
        return all_losses, all_rows

    def _together(
        self, x: Tensor, batches: Sequence[Batch], seed: Callable[[], int], rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """(losses [C], gradients [C, d]) of C batches of equal size, in one call.

        x: the parameters [C, d]. seed: gives the seed of the global random generators; it is called only if the batches
        or the step may draw random numbers. rows: the positions of these clients in the cohort.
        """
        if batches[0].random:
            seed_everything(seed())
        content = stack_batches(batches)
        if dense := self._dense(content):
            return self._through(dense, x, content, lambda c: seed())
        buffers = self.buffers.of(rows)
        args = (x.detach(), buffers, content)
        self.rows.sink = None if self.log.sink is None else self._log_replay
        # under vmap `training_step` itself reads its number, so that its results need no comparison at each number
        kind = content[0].shape[1:2], self.t if self.cohort_losses else 0
        due = self.schedule.due(*kind)
        buffers_before = [b.clone() for b in buffers] if due else []
        content_before = tuple(part.clone() for part in content) if due else ()  # the step may change it in place
        program = self.steps.program(args, self.t)
        if not batches[0].random:
            seed_for(program, seed)
        generators = self._generators() if due else []
        self.rows.values = {}
        losses, g = self.steps.take(args, self.t) if program is None else self.steps.replay(program, args)
        self.log.values = self.rows.values
        self.buffers.keep(rows, buffers)
        if due:
            call = CohortCall(x, content_before, buffers_before, seed(), losses, g, buffers, self.log.values)
            self._prove(call, draws=not all(map(torch.equal, generators, self._generators())))
            self.schedule.proved(*kind)
        if self.must_record:
            self.steps.must_be_possible()
        self.ways[self._mode(program is not None)] += len(batches)
        return losses, g

    def _generators(self) -> list[Tensor]:
        """The states of torch's generators on the CPU and on the parameters' device."""
        device = self.flat.params.device
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

    def _mode(self, replayed: bool) -> GradientMode:
        """The mode of a call that was replayed or computed by autograd."""
        by = "the model's own cohort_losses" if self.cohort_losses else "vmap over training_step"
        how = "replayed" if replayed else "by autograd, to record it" if self.steps.refusal is None else "by autograd"
        why = f" ({self.steps.reason})" if self.steps.refusal else ""
        return GradientMode("cohort", f"{TOGETHER}: {by}, {how}{why}")

    def losses(self, args: _StepInput, t: int = 0) -> Tensor:
        """The losses [C] of C clients with their autograd graph; the buffers change only in `_gradients`.

        args: (parameters [C, d], buffers [C, *shape], batches [C, B, ...]). t: the number of the local step.
        """
        self.step.t = t
        x, buffers, batch = args
        self._weights = [view.detach().requires_grad_() for view in self.flat.views(x)]
        with self.autocast(), checks_without_symbols():
            losses, logged, new_buffers = self.forward(self._weights, buffers, batch)
        for held, new in zip(buffers, new_buffers, strict=True):
            if new.shape != held.shape:
                raise RuntimeError(f"a step made a buffer of shape {[*held.shape[1:]]} one of {[*new.shape[1:]]}")
        self._assigned = [(held, new) for held, new in zip(buffers, new_buffers, strict=True) if new is not held]
        self.rows.values = logged
        for name, values in logged.items():
            self.rows.note(name, values, self.log.options.get(name, {}))
        return losses

    def _log_replay(self, name: str, values: Tensor, **options: Any) -> None:
        """Logs the values [C] of a `self.log` call of a replayed step, with the call's name and options."""
        assert self.log.sink is not None
        self.log.sink(name, values[0], **options)
        self.rows.values[name] = values

    def _gradients(self, losses: Tensor) -> Sequence[Tensor | None]:
        gradients = torch.autograd.grad(losses.sum(), self._weights, allow_unused=True)
        copy_together(self._assigned)  # after the backward pass, which may need the former entries
        return gradients

    def _dense(self, content: Sequence[Tensor], sizes: Sequence[int] = ()) -> Innermost | None:
        """The module's step translated to batched matrix products; None if it has no such translation.

        content: batches [C, B, ...]. sizes: for filled-up batches, the number of real samples of each.
        """
        if self.innermost is None or not takes(content, ndim=2):
            return None
        x, y = (part[0] for part in content)
        steps = [self.innermost.of((x[:size], y[:size]), private_randomness) for size in {len(y), *sizes}]
        first = steps[0]
        return first if first and all(step and step.text == first.text for step in steps) else None

    def _through(
        self,
        step: Innermost,
        x: Tensor,
        content: tuple[Tensor, ...],
        seeds: Callable[[int], int],
        sizes: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor]:
        g = torch.empty_like(x)
        self.ways[DENSE] += len(x)
        losses = step.gradients(content, self.flat.views(x), self.flat.views(g))
        kind = (DENSE, len(sizes) > 0, content[0].shape[1]), self.t
        if self.schedule.due(*kind):
            self._prove(CohortCall(x, content, [], seeds(0), losses, g, [], {}, sizes, step))
            self.schedule.proved(*kind)
        return losses, g

    def _prove(self, call: CohortCall, draws: bool = False) -> None:
        """Compares two clients of a call with the reference; raises Diverged if a result differs.

        draws: whether the call has drawn random numbers. All clients then draw other numbers than alone. For the
        comparison the two clients take the step once more with the same numbers as the reference; in evaluation mode,
        if the model computes the losses of a cohort itself, and on a GPU, where vmap draws by other kernels.
        """
        count, turn = len(call.x), self.schedule.comparisons
        pair = sorted({turn % count, (turn + count // 2) % count})
        forward = self.forward
        with self.reference.aside(self.log):
            try:
                quiet = draws and (self.cohort_losses or self.flat.params.device.type != "cpu")
                if quiet:
                    self.flat.module.eval()
                if draws:
                    call, pair = self._with_the_same_numbers(call, pair), list(range(len(pair)))
                    if not quiet and seeds_itself(call, self.reference, self.log, self.t):
                        raise Diverged(
                            f"{type(self.flat.module).__name__}.training_step seeds torch's generator itself, but in a "
                            "call for several clients these draw unequal numbers",
                            "runtime.vectorize=never",
                        )
                for k in pair:
                    differs = compare_client(call, k, self.reference, self.log, self.t, self._again)
                    if differs is not None:
                        form = "cohort_losses" if self.cohort_losses else "vmap"
                        raise Diverged(
                            f"{type(self.flat.module).__name__}.training_step has other results for several clients in "
                            f"one call ({'batched matrix products' if call.step else form}): {differs}, in local step "
                            f"{self.t} of client {k + 1} of {len(call.x)}",
                            "runtime.vectorize=never",
                        )
            finally:
                self.forward = forward

    def _with_the_same_numbers(self, call: CohortCall, pair: Sequence[int]) -> CohortCall:
        """The call of the clients `pair` only, both with the random numbers that one client alone would draw.

        Later calls of `_again` draw them, too, as this function replaces `self.forward`.
        """
        self.forward = self.forward if self.cohort_losses else vmap(self._loss, randomness="same")
        part = call._replace(
            x=call.x[list(pair)],
            content=tuple(part[list(pair)] for part in call.content),
            buffers_before=[b[list(pair)] for b in call.buffers_before],
        )
        return self._again(part, part.x)

    def _again(self, call: CohortCall, x: Tensor) -> CohortCall:
        """The call with other parameters [C, d], and its results."""
        seed_everything(call.seed)
        if call.step is not None:
            g = torch.empty_like(x)
            losses = call.step.gradients(call.content, self.flat.views(x), self.flat.views(g))
            return call._replace(x=x, losses=losses, g=g)
        buffers = [b.clone() for b in call.buffers_before]
        losses, g = self.steps.reference((x, buffers, tuple(part.clone() for part in call.content)), self.t)
        return call._replace(x=x, losses=losses, g=g, buffers_after=buffers, logged=dict(self.rows.values))


def names_of(tensors: Sequence[Tensor], module: nn.Module, kind: str = "_parameters") -> list[tuple[str, int]]:
    """(attribute path, number of its tensor) of every attribute of the module that is one of these tensors.

    A submodule with two names is listed once: torch's functional_call would replace its attributes twice, and would
    then leave temporary tensors in the submodule. kind: `_parameters` or `_buffers`.
    """
    number = {id(p): k for k, p in enumerate(tensors)}
    held = [(f"{path}.{name}", p) for path, part in module.named_modules() for name, p in getattr(part, kind).items()]
    return [(name, number[id(p)]) for name, p in held if id(p) in number]
