"""A table of Lightning's hooks, each of which a run calls, refuses, or ignores with a warning."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

from raylfl.errors import BadConfig

Verdict = Literal["called", "refused", "ignored"]


@dataclass(frozen=True)
class Hook:
    """The treatment of a hook that a module overrides.

    note: when a called hook is called, what to use in place of a refused hook, or why a hook is ignored.
    """

    verdict: Verdict
    note: str


def _called(when: str) -> Hook:
    return Hook("called", when)


def _refused(remedy: str) -> Hook:
    return Hook("refused", remedy)


def _ignored(why: str) -> Hook:
    return Hook("ignored", why)


LOCAL_WORK = (  # hooks called around and within a client's local work
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
    "on_train_batch_end",
    "on_train_epoch_end",
    "on_train_end",
)
WHOLE = ("start", "epoch_start", "epoch_end", "end")  # on_validation_...: hooks of an evaluation as a whole
BATCH = ("batch_start", "batch_end")

HOOKS: dict[str, Hook] = {
    "setup": _called("once, with stage 'fit', after the module is made"),
    "configure_model": _called("once, after the module is made"),
    "on_train_start": _called("before a client's local work, at the parameters it starts from"),
    "on_train_epoch_start": _called("before each pass over the client's data"),
    "on_train_batch_start": _called("before each local step; it may not return -1"),
    "on_after_backward": _called("after each gradient, with `.grad` set; changes of `.grad` count"),
    "on_before_optimizer_step": _called("after on_after_backward, in the same way"),
    "configure_gradient_clipping": _called("after on_before_optimizer_step, in place of local.clip_norm"),
    "on_train_batch_end": _called("after each local step"),
    "on_train_epoch_end": _called("after each pass over the client's data, a last partial one included"),
    "on_train_end": _called("after a client's local work, before its upload is made"),
    **{
        f"on_{stage}_{part}": _called(when)
        for stage in ("validation", "test")
        for part, when in {
            "start": "before an evaluation",
            "epoch_start": "before an evaluation",
            "batch_start": "before each batch",
            "batch_end": "after each batch",
            "epoch_end": "after an evaluation; what it logs is in the rows",
            "end": "after an evaluation",
        }.items()
    },
    "backward": _refused("gradients are taken by torch.autograd.grad; change the loss in training_step"),
    "on_before_backward": _refused("change the loss in training_step, or the gradients in on_after_backward"),
    "on_before_zero_grad": _refused("use on_train_batch_start or on_train_batch_end"),
    "optimizer_zero_grad": _refused("gradients are never accumulated"),
    "optimizer_step": _refused("use local.lr_schedule, or an lr_scheduler with local.optimizer=module"),
    "lr_scheduler_step": _refused("give configure_optimizers a scheduler that steps without arguments"),
    "clip_gradients": _refused("override configure_gradient_clipping, which may call it"),
    "on_before_batch_transfer": _refused("use the data's train_transform or collate_fn"),
    "transfer_batch_to_device": _refused("use the data's collate_fn; a batch object may have a method `to`"),
    "on_after_batch_transfer": _refused("use the data's train_transform"),
    "configure_sharded_model": _refused("use configure_model"),
    "prepare_data": _ignored("data come from the data class"),
    "train_dataloader": _ignored("data come from the data class"),
    "val_dataloader": _ignored("data come from the data class"),
    "test_dataloader": _ignored("data come from the data class"),
    "predict_dataloader": _ignored("a run predicts nothing"),
    "on_fit_start": _ignored("use on_train_start"),
    "on_fit_end": _ignored("use on_train_end"),
    "teardown": _ignored("a worker ends with its process"),
    "on_validation_model_zero_grad": _ignored("gradients are not kept in the module"),
    "on_validation_model_eval": _ignored("the module is put into evaluation mode as a whole"),
    "on_validation_model_train": _ignored("the module is put into training mode as a whole"),
    "on_test_model_eval": _ignored("the module is put into evaluation mode as a whole"),
    "on_test_model_train": _ignored("the module is put into training mode as a whole"),
    "on_save_checkpoint": _ignored("checkpoints hold the state of the whole federation"),
    "on_load_checkpoint": _ignored("checkpoints hold the state of the whole federation"),
    "configure_callbacks": _ignored("there is no Trainer"),
    "on_predict_start": _ignored("a run predicts nothing"),
    "on_predict_end": _ignored("a run predicts nothing"),
    "on_predict_epoch_start": _ignored("a run predicts nothing"),
    "on_predict_epoch_end": _ignored("a run predicts nothing"),
    "on_predict_batch_start": _ignored("a run predicts nothing"),
    "on_predict_batch_end": _ignored("a run predicts nothing"),
    "on_predict_model_eval": _ignored("a run predicts nothing"),
}


def overrides_hook(module: Any, name: str) -> bool:
    """Whether the module or its class overrides the method `name` of LightningModule."""
    from lightning.pytorch import LightningModule

    own = getattr(type(module), name, None) is not getattr(LightningModule, name, None)
    return own or name in vars(module)


def overridden(module: Any, verdict: Verdict) -> list[str]:
    """The names of the hooks with this verdict that the module overrides."""
    return [name for name, hook in HOOKS.items() if hook.verdict == verdict and overrides_hook(module, name)]


def refuse(module: Any) -> None:
    """Raises BadConfig if the module overrides hooks that are not supported; the message gives a remedy for each."""
    problems = [
        f"model {type(module).__name__} overrides {name}, which is not called here: {HOOKS[name].note}"
        for name in overridden(module, "refused")
    ]
    if problems:
        raise BadConfig(problems)


def takes_only_a_batch(module: Any, name: str) -> bool:
    """Whether the module's step `name` has the batch as its only argument; Lightning allows it to omit batch_idx."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(getattr(module, name)).parameters.values()
    return sum(p.kind in kinds for p in parameters) == 1 and all(p.kind in kinds for p in parameters)
