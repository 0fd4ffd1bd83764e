"""A table of Lightning's hooks, each of which a run calls, refuses, or ignores with a warning."""

import inspect
from typing import Any, Literal

from raylfl.errors import BadConfig

Verdict = Literal["called", "refused", "ignored"]

LOCAL_WORK = {  # hooks called around and within a client's local work
    "on_train_start": "before a client's local work, at the parameters it starts from",
    "on_train_epoch_start": "before each pass over the client's data",
    "on_train_batch_start": "before each local step; it may not return -1",
    "on_after_backward": "after each gradient, with `.grad` set; changes of `.grad` count",
    "on_before_optimizer_step": "after on_after_backward, in the same way",
    "configure_gradient_clipping": "after on_before_optimizer_step, in place of local.clip_norm",
    "on_train_batch_end": "after each local step",
    "on_train_epoch_end": "after each pass over the client's data, a last partial one included",
    "on_train_end": "after a client's local work, before its upload is made",
}
WHOLE = ("start", "epoch_start", "epoch_end", "end")  # suffixes of on_validation_*, on_test_*: once per evaluation
BATCH = ("batch_start", "batch_end")  # once per batch of an evaluation

HOOKS: dict[Verdict, dict[str, str]] = {  # hook -> if called, when; if refused, what to use instead; if ignored, why
    "called": {
        "setup": "once, with stage 'fit', after the module is made",
        "configure_model": "once, after the module is made",
        **LOCAL_WORK,
        **{
            f"on_{stage}_{part}": when
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
    },
    "refused": {
        "backward": "a gradient may be a replay, without `backward`; change the loss in training_step",
        "on_before_backward": "change the loss in training_step, or the gradients in on_after_backward",
        "on_before_zero_grad": "use on_train_batch_start or on_train_batch_end",
        "optimizer_zero_grad": "no step sees another one's gradients; local.accumulate averages batches",
        "optimizer_step": "use local.lr_schedule, or an lr_scheduler with local.optimizer=module",
        "lr_scheduler_step": "give configure_optimizers a scheduler that steps without arguments",
        "clip_gradients": "override configure_gradient_clipping, which may call it",
        "on_before_batch_transfer": "use the data's train_transform or collate_fn",
        "transfer_batch_to_device": "use the data's collate_fn; a batch object may have a method `to`",
        "on_after_batch_transfer": "use the data's train_transform",
        "configure_sharded_model": "use configure_model",
    },
    "ignored": {
        **dict.fromkeys(
            ("prepare_data", "train_dataloader", "val_dataloader", "test_dataloader"), "data come from the data class"
        ),
        "predict_dataloader": "a run predicts nothing",
        "on_fit_start": "use on_train_start",
        "on_fit_end": "use on_train_end",
        "teardown": "a worker ends with its process",
        "on_validation_model_zero_grad": "gradients are not kept in the module",
        **{
            f"on_{stage}_model_{mode}": f"the module is put into {name} mode as a whole"
            for stage in ("validation", "test")
            for mode, name in (("eval", "evaluation"), ("train", "training"))
        },
        **dict.fromkeys(
            ("on_save_checkpoint", "on_load_checkpoint"), "checkpoints hold the state of the whole federation"
        ),
        "configure_callbacks": "there is no Trainer",
        **{
            f"on_predict_{part}": "a run predicts nothing"
            for part in ("start", "end", "epoch_start", "epoch_end", "batch_start", "batch_end", "model_eval")
        },
    },
}


def overrides_hook(module: Any, name: str) -> bool:
    """Whether the module or its class overrides the method `name` of LightningModule."""
    from lightning.pytorch import LightningModule

    own = getattr(type(module), name, None) is not getattr(LightningModule, name, None)
    return own or name in vars(module)


def overridden(module: Any, verdict: Verdict) -> dict[str, str]:
    """The hooks with this verdict that the module overrides, and their notes."""
    return {name: note for name, note in HOOKS[verdict].items() if overrides_hook(module, name)}


def refuse(module: Any) -> None:
    """Raises BadConfig if the module overrides hooks that are not supported; the message gives a remedy for each."""
    if hooks := overridden(module, "refused"):
        start = f"model {type(module).__name__} overrides"
        raise BadConfig([f"{start} {name}, which is not called here: {note}" for name, note in hooks.items()])


def takes_only_a_batch(module: Any, name: str) -> bool:
    """Whether the module's step `name` has the batch as its only argument; Lightning allows it to omit batch_idx."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(getattr(module, name)).parameters.values()
    return [p.kind in kinds for p in parameters] == [True]
