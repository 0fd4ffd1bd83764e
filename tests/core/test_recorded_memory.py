"""Fixed memory of recorded steps: blocks that never overlap in use, the same bits, and calls that cannot use it."""

import random
from itertools import combinations

import pytest
import torch
import torch.nn.functional as F

from raylfl.replay.innermost.steps import InnermostSteps
from raylfl.replay.proof import same_bits
from raylfl.replay.recorded import memory
from raylfl.replay.recorded.memory import Arena, _Blocks
from raylfl.replay.recorded.program import Program, compile_calls
from raylfl.replay.recorded.source import ALIGNMENT
from tests.core import user_modules as users
from tests.core.test_innermost_steps import LeNet
from tests.core.test_recorded import check_bits, logging_steps, steps_of

aten = torch.ops.aten


@pytest.mark.parametrize("seed", range(20))
def test_blocks_in_use_at_the_same_time_do_not_overlap(seed):
    draw = random.Random(seed)
    blocks, taken = _Blocks(), []
    for at in range(40):
        size, last = draw.choice([0, 1, 64, 100, 4096, 10_000]), at + draw.choice([0, 0, 1, 3, 40])
        begin = blocks.take(size, at, last)
        assert begin % ALIGNMENT == 0
        assert begin + size <= blocks.size
        taken.append((at, last, begin, begin + size))
    for (at, last, begin, end), (later, _, start, stop) in combinations(taken, 2):
        assert later > last or stop <= begin or end <= start, (at, later)
    busiest = max(sum(end - begin for at, last, begin, end in taken if at <= now <= last) for now in range(40))
    assert blocks.size >= busiest
    assert blocks.size < sum(end - begin for *_, begin, end in taken)  # memory is used again


def test_programs_of_two_batch_sizes_share_memory_that_grows():
    module = users.Residual()
    _, recorded = steps_of(module)
    small, large = module.batch(4), module.batch(40)
    for _ in range(2):
        recorded.take(small)
    before = recorded.arena._storage.nbytes()
    (kind,) = recorded.kinds.values()
    program = kind.program
    row, again = torch.empty(sum(recorded.sizes)), torch.empty(sum(recorded.sizes))
    torch.manual_seed(1)
    loss = program(small, row)[0].clone()
    for _ in range(2):
        recorded.take(large)
    assert recorded.arena._storage.nbytes() > 4 * before
    _, kind = recorded.kinds.values()
    kind.program(large, torch.empty(sum(recorded.sizes)))
    torch.manual_seed(1)
    assert same_bits(program(small, again)[0], loss)
    assert same_bits(row, again)


def test_a_step_larger_than_the_limit_allocates_its_values(monkeypatch):
    monkeypatch.setattr(memory, "LARGEST", 100)
    module = users.Dense()
    _, recorded = steps_of(module)
    for _ in range(5):
        recorded.take(module.batch(4))
    assert recorded.refusal is None
    assert recorded.arena._storage.nbytes() == 0
    (kind,) = recorded.kinds.values()
    assert isinstance(kind.program, Program)
    assert "out=t" not in kind.program.listing


def test_loss_and_logged_values_are_new_tensors_in_every_step():
    module, _, recorded = logging_steps()
    batch = module.batch(4)
    for _ in range(2):
        recorded.take(batch)
    (kind,) = recorded.kinds.values()
    program, row = kind.program, torch.empty(sum(recorded.sizes))
    first = program(batch, row)
    kept = [value.clone() for value in first]
    assert len(kept) > 2
    program([torch.zeros_like(leaf) for leaf in batch], row)
    assert all(map(same_bits, first, kept))


class SeveralLosses(users.Dense):
    """Means of losses that are parts of the loss, beside values that are in use at the same time."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores, wanted = self(x), torch.nn.functional.one_hot(y, users.CLASSES).float()
        losses = F.mse_loss, F.smooth_l1_loss, F.huber_loss
        total = F.binary_cross_entropy(scores.sigmoid(), wanted) + F.cross_entropy(scores, y)
        return total + sum(loss(scores, wanted) for loss in losses)


def test_losses_that_enlarge_the_tensor_that_they_write_to_have_memory_of_their_own(capfd):
    recorded, replayed = check_bits(SeveralLosses, steps=16)
    assert recorded.refusal is None
    assert replayed == 6
    assert all(kind.program.arena is recorded.arena for kind in recorded.kinds.values())
    assert "was resized" not in capfd.readouterr().err  # torch's warning


def test_outputs_in_fixed_memory_have_the_same_bits_and_outlive_the_next_step():
    """An evaluation, which may be in inference mode, shares the memory of the steps."""
    torch.manual_seed(0)
    module = LeNet()
    steps, weights = InnermostSteps(module), list(module.parameters())
    content = module.batch(7)
    step = steps.of(content)
    with torch.inference_mode():
        found = [step.outputs(torch.randn(70, 1, 28, 28), weights) for _ in range(2)]
        kept = [outputs.clone() for outputs in found]
        x = torch.randn(70, 1, 28, 28)
        with torch._C._AutoDispatchBelowAutograd():
            expected = torch.cat([step._outputs(piece, weights) for piece in x.split(32)])
        assert same_bits(step.outputs(x, weights), expected)
    out = [torch.empty_like(w) for w in weights]
    for _ in range(3):
        step.gradients(content, weights, out)
    assert len(step._fixed) == 3  # 32 and 6 samples of an evaluation, 7 of a step
    assert all(step._fixed.values())
    assert all(map(same_bits, found, kept))


def test_a_step_that_cannot_be_recorded_is_tried_once(monkeypatch):
    tried = []
    monkeypatch.setattr("raylfl.replay.innermost.step.compile_calls", lambda *given: tried.append(given))
    module = LeNet()
    content, weights = module.batch(3), list(module.parameters())
    step, out = InnermostSteps(module).of(content), [torch.empty_like(w) for w in weights]
    for _ in range(5):
        step.gradients(content, weights, out)
    assert len(tried) == 1


def test_functions_that_read_values_are_not_listed():
    x, out = torch.ones(3), torch.zeros(3)
    assert compile_calls(lambda: out.copy_(x * float(x.sum())), [x], [out], Arena()) is None
    step = compile_calls(lambda: out.copy_(x * 2).sum(), [x], [out], Arena())
    assert step((torch.full((3,), 4.0), out))[0] == 24
    assert out.tolist() == [8.0, 8.0, 8.0]
