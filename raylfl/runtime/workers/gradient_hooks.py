"""Lightning's hooks between a gradient and the optimizer's step, which can read and change `.grad` of the parameters.

They are called in Lightning's order: `on_after_backward`, `on_before_optimizer_step`, `configure_gradient_clipping`.
The option `local.clip_norm` corresponds to Lightning's `Trainer(gradient_clip_val=...)`. If a module overrides
`configure_gradient_clipping`, this hook receives `local.clip_norm` as `gradient_clip_val` and clips the gradients; the
local solver then does not.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from raylfl.core.flat import FlatModule
from raylfl.core.local_optimizer import LocalOptimizer
from raylfl.errors import BadConfig
from raylfl.runtime.workers.optimizer import ModuleOptimizer

ON_GRADIENTS = ("on_after_backward", "on_before_optimizer_step", "configure_gradient_clipping")


class GradientHooks:
    """Calls a module's hooks on gradients (name -> method), and replaces its `clip_gradients`."""

    def __init__(self, flat: FlatModule, hooks: Mapping[str, Callable[..., Any]], clip_norm: float | None):
        self.flat, self.clip_norm = flat, clip_norm
        self.hooks = {name: hooks[name] for name in ON_GRADIENTS if name in hooks}
        module: Any = flat.module
        module.clip_gradients = self.clip_gradients

    @property
    def clips(self) -> bool:
        """Whether the module clips gradients itself, in place of the local solver."""
        return "configure_gradient_clipping" in self.hooks

    def call(self, g: Tensor, optimizer: LocalOptimizer) -> None:
        """Calls the hooks with the gradient g [d] as `.grad` of the parameters; their changes are written into g."""
        parameters, views = self.flat.parameters, self.flat.set_gradients(g)
        # without options, unless local steps use the module's optimizer
        shown = optimizer.optimizer if isinstance(optimizer, ModuleOptimizer) else Optimizer(parameters, {})
        for name, hook in self.hooks.items():
            if name == "on_after_backward":
                hook()
            elif name == "on_before_optimizer_step":
                hook(shown)
            else:
                how = None if self.clip_norm is None else "norm"
                hook(shown, gradient_clip_val=self.clip_norm, gradient_clip_algorithm=how)
        self.flat.take_back()
        self.flat.without_gradient = frozenset(k for k, p in enumerate(parameters) if p.grad is None)
        for p, own in zip(parameters, views, strict=True):
            if p.grad is None:
                own.zero_()
            elif p.grad is not own:  # replaced instead of changed in place
                own.copy_(p.grad)
            p.grad = None

    def clip_gradients(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clips gradients like `LightningModule.clip_gradients`, which it replaces because a Trainer is missing.

        gradient_clip_val: None stands for `local.clip_norm`; if both are None, nothing is clipped.
        gradient_clip_algorithm: norm (default) or value. Raises BadConfig if `local.clip_norm` is set and the arguments
        ask for other clipping than by this norm.
        """
        from lightning.pytorch.plugins.precision import Precision
        from lightning.pytorch.utilities import GradClipAlgorithmType

        value = self.clip_norm if gradient_clip_val is None else gradient_clip_val
        how = GradClipAlgorithmType((gradient_clip_algorithm or "norm").lower())
        if self.clip_norm is not None and (value, how) != (self.clip_norm, GradClipAlgorithmType.NORM):
            raise BadConfig(
                f"local.clip_norm={self.clip_norm}, but {type(self.flat.module).__name__} calls clip_gradients("
                f"gradient_clip_val={value}, gradient_clip_algorithm={how.value!r}): use one of the two"
            )
        Precision().clip_gradients(optimizer, value or 0.0, how)
