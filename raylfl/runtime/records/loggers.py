"""Loggers in addition to metrics.jsonl: Lightning's CSV and TensorBoard loggers, wandb, and your own classes.

Loggers are opened only in the process of the round loop. A logger that fails is dropped with a one-line message, and
the run continues: metrics.jsonl is always written, and other logs can be rebuilt from it.
"""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

from raylfl.components.extras import require
from raylfl.config.components import check_arguments, construct
from raylfl.config.groups.top import ComponentConfig
from raylfl.config.load import Config
from raylfl.config.registries import LOGGERS
from raylfl.errors import BadValue, Say
from raylfl.runtime.records.lines import numbers_of
from raylfl.runtime.records.run_dir import RunDirectory

KEY = "logging.loggers"
FOLDER_ARGUMENTS = ("run_dir", "save_dir")  # arguments set to the run's directory unless init_args give them


class Logger(Protocol):
    """The interface of all loggers; `LightningLogger` adapts Lightning's loggers to it."""

    def log(self, metrics: dict[str, Any]) -> None:
        """Records one row of metrics.jsonl."""

    def close(self) -> None:
        """Finishes the log; called when the run ends, also after an error."""


def check_loggers(chosen: Sequence[ComponentConfig]) -> None:
    """Raises BadConfig for a missing library, class or method of a logger, and for arguments that do not fit."""
    for logger in chosen:
        if logger.name in ("tensorboard", "wandb"):  # the libraries have the loggers' names
            require(logger.name, what=f"{KEY}={logger.name}")
        if _is_shipped(logger):
            if logger.init_args:
                raise BadValue(f"{KEY}.init_args", got=logger.init_args, need=f"left out: {logger.name} takes none")
            continue
        cls = LOGGERS.find(vars(logger), KEY)
        if not (hasattr(cls, "log_metrics") or (hasattr(cls, "log") and hasattr(cls, "close"))):
            need = "a Lightning logger, or a class with log(metrics) and close()"
            raise BadValue(KEY, got=logger.class_path or logger.name, need=need)
        check_arguments(cls, _with_folder(cls, logger.init_args, ""), KEY)


class Loggers:
    """The loggers of a run, as selected by `logging.loggers`."""

    def __init__(self, config: Config, run_dir: RunDirectory, say: Say):
        self.say = say
        self._open: dict[str, Logger] = {}
        for k, logger in enumerate(config.logging.chosen):
            label = str(logger.name or logger.class_path)
            name = f"{label} ({k + 1})" if label in self._open else label
            try:
                with warnings.catch_warnings(action="ignore"):
                    self._open[name] = open_logger(logger, config, run_dir, say)
            except Exception as error:
                self.say(f"logger {name} could not be opened and is left out ({type(error).__name__}: {error})")

    def log(self, metrics: dict[str, Any]) -> None:
        self._call("log", metrics)

    def close(self) -> None:
        self._call("close")
        self._open.clear()

    def _call(self, method: str, *arguments: Any) -> None:
        """Calls a method of every open logger; a logger that fails is dropped with a message."""
        for name, logger in list(self._open.items()):
            try:
                getattr(logger, method)(*arguments)
            except Exception as error:
                del self._open[name]
                reason = f"{type(error).__name__}: {error}"
                self.say(f"logger {name} failed and gets no further rows ({reason}); metrics.jsonl continues")


def open_logger(logger: ComponentConfig, config: Config, run_dir: RunDirectory, say: Say) -> Logger:
    """Creates the logger that an entry of `logging.loggers` selects."""
    cls: Any = LOGGERS.find(vars(logger), KEY)
    if _is_shipped(logger):
        shipped: Logger = cls(config, run_dir, say)
        return shipped
    custom: Logger = construct(cls, _with_folder(cls, logger.init_args, str(run_dir.path)), KEY)
    return LightningLogger(custom, config) if hasattr(custom, "log_metrics") else custom


def _is_shipped(logger: ComponentConfig) -> bool:
    return logger.name is not None and not LOGGERS.get(logger.name).origin


def _with_folder(cls: Any, init_args: dict[str, Any], folder: str) -> dict[str, Any]:
    """`init_args`, with `folder` as the default of each argument in FOLDER_ARGUMENTS that the class accepts."""
    takes = inspect.signature(cls).parameters
    return {**{name: folder for name in FOLDER_ARGUMENTS if name in takes}, **init_args}


class LightningLogger:
    """Adapts a Lightning logger to the interface `Logger`; Lightning's `step` is the round."""

    def __init__(self, logger: Any, config: Config):
        self.logger = logger
        self.logger.log_hyperparams(config.resolved)

    def log(self, metrics: dict[str, Any]) -> None:
        numbers = numbers_of(metrics)
        self.logger.log_metrics(numbers, step=numbers.pop("round"))

    def close(self) -> None:
        self.logger.save()
        self.logger.finalize("success")


@LOGGERS.register("csv")
class Csv(LightningLogger):
    """Lightning's CSV logger, which writes csv/metrics.csv."""

    def __init__(self, config: Config, run_dir: RunDirectory, say: Say):
        from lightning.pytorch.loggers import CSVLogger

        super().__init__(CSVLogger(str(run_dir.path), name="csv", version="", flush_logs_every_n_steps=1), config)
        for row in run_dir.metrics():  # before a resume: Lightning's logger overwrites the file
            self.log(row)


@LOGGERS.register("tensorboard")
class TensorBoard(LightningLogger):
    """TensorBoard's event files, in the folder tensorboard/."""

    def __init__(self, config: Config, run_dir: RunDirectory, say: Say):
        from lightning.pytorch.loggers import TensorBoardLogger

        where = str(run_dir.path)
        super().__init__(TensorBoardLogger(where, name="tensorboard", version="", default_hp_metric=False), config)
