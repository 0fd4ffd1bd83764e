"""The recorded step of modules as in the code of papers: autograd's bits, or a refusal with its reason."""

from __future__ import annotations

import pytest
import torch

from tests.core import paper_modules as papers
from tests.core.test_recorded import check_bits, steps_of

RECORDED = [papers.Tuned, papers.Proximal]


@pytest.mark.parametrize("kind", RECORDED, ids=lambda kind: kind.__name__)
def test_a_module_of_a_paper_has_the_bits_of_autograd(kind):
    recorded, replayed = check_bits(kind, steps=16)
    assert recorded.refusal is None
    assert replayed == 6


def test_a_step_that_sets_modes_is_recorded_for_each_mode_that_it_finds_and_its_replays_set_them():
    """A client starts in training mode; the first step of its local work sets another mode."""
    module = papers.Tuned()
    _, recorded = steps_of(module)
    found = []
    for _ in range(8):
        module.train()
        for _ in range(2):
            content = module.batch(4)
            program = recorded.program(content)
            recorded.take(content) if program is None else recorded.replay(program, content)
            found.append(program is not None)
            assert not any(part.training for part in module.backbone.modules())
    assert recorded.refusal is None
    assert found == [False] * 8 + [True] * 6 + [False] * 2  # the eighth step of a kind is compared


def test_a_tensor_in_an_attribute_may_be_written_to_by_other_code():
    module = papers.Proximal()
    _, recorded = steps_of(module)
    for _ in range(4):
        recorded.take(module.batch(4))
    assert recorded.program(module.batch(4)) is not None, recorded.refusal
    module.anchors[0].add_(1)
    recorded.doubt()
    assert recorded.program(module.batch(4)) is None
    recorded.take(content := module.batch(4))
    assert recorded.refusal is None
    program = recorded.program(content)
    expected = module.training_step(content, 0)
    assert torch.equal(recorded.replay(program, content)[0], expected.detach())


class WritesAnchors(papers.Proximal):
    def training_step(self, batch, batch_idx):
        self.anchors[0].mul_(0.9)
        return super().training_step(batch, batch_idx)


class AnchoredInBatch(papers.Proximal):
    """A module whose batches are views of one of its attributes."""

    def build(self):
        super().build()
        self.data = torch.randn(9, *self.shape)

    def batch(self, size):
        return self.data[:size], torch.arange(size) % 5

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.data.mean() * self.out.bias.sum()


REFUSED = {
    WritesAnchors: "changes the module's attribute `anchors`",
    AnchoredInBatch: "uses a tensor that shares memory with the batch",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_a_recording_cannot_follow_is_refused(kind):
    _, recorded = steps_of(module := kind())
    for _ in range(4):
        recorded.take(module.batch(4))
    assert recorded.refusal is not None
    assert REFUSED[kind] in recorded.refusal
