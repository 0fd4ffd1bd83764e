"""The Python interface: `resume`, and the parts of a run (`run` is in `execution.several`).

Modules that need torch or Ray are imported inside the functions, after the config has been checked: mistakes are then
reported at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from raylfl.components.extras import require
from raylfl.config.identity import identity, refuse_changes
from raylfl.config.load import Config, compose, load_config
from raylfl.config.objects import GROUPS, ObjectLayer, Objects, can_import, object_layer
from raylfl.config.urls import is_url, join
from raylfl.errors import BadConfig, UnusableConfig, exits_as_errors, require_lists
from raylfl.python.control import Callback, Progress, interactive, reason_to_stop
from raylfl.python.result import Result, SavedRun, location, one_at_a_time, result_of
from raylfl.runtime.stopping import sigterm_interrupts

if TYPE_CHECKING:
    from raylfl.config.groups.runtime import RuntimeConfig
    from raylfl.experiment.parts import Experiment
    from raylfl.runtime.records.run_dir import RunDirectory

Watch = Callable[[Progress], None]
IDENTITY = "identity.txt"  # in the folder of a run of a comparison (`execution.store`)


def watching(watch: Watch | None, progress: bool | None) -> AbstractContextManager[Watch | None]:
    """A context with the watch function of a run from Python: `watch`, or one that prints the progress, or None."""
    if watch is not None or not (interactive() if progress is None else progress):
        return nullcontext(watch)
    from raylfl.python.console import Watcher

    return Watcher()


def resume(
    path: str | Path | Result | SavedRun,
    overrides: Sequence[str] = (),
    watch: Watch | None = None,
    *,
    trust: bool = False,
    progress: bool | None = None,
    take_over: bool = False,
    known: Collection[str] = (),
    callbacks: Sequence[Callback] = (),
    **objects: Unpack[Objects],
) -> Result:
    """Resumes a run (its directory, URL, Result or Run) from its newest intact checkpoint; `rounds` may be raised.

    Objects that the config cannot name must be passed again. With `trust=True` they are loaded from the run's
    objects.pkl instead. Loading executes code in that file, and a run that was not written on this machine is resumed
    only with `trust=True` if its config names classes outside raylfl: use `trust=True` for run directories of people
    you trust only. known: class paths for which no trust is needed.
    take_over: whether a run at a URL is taken from the process that owns it, which was killed on another machine. The
    other arguments are those of `raylfl.run`. Raises BadConfig, also if a key that defines the run changes.
    """
    from raylfl.runtime.records.mirror import local_folder

    require_lists(callbacks=callbacks)
    path = location(path)
    folder = local_folder(path, take_over)
    before, config = saved(folder, path if is_url(path) else folder, overrides, trust, objects, known)
    refuse_changes(before.resolved, config.resolved)
    check_runtime(vars(config))
    with watching(watch, progress) as shown:
        experiment = checked(config)
        with reopened(folder, before, experiment) as run_dir:
            return carry_out(experiment, run_dir, True, shown, callbacks)


def run_or_resume(experiment: Experiment, watch: Watch | None) -> Result | str:
    """Executes a run with a `logging.id`, or continues the run of this id; how it ended, if it is finished.

    Its `rounds` may be raised, and keys that do not define it may differ from the saved ones. Raises BadConfig.
    """
    from raylfl.runtime.records.mirror import exists, local_folder, local_view
    from raylfl.runtime.records.provenance import foreign
    from raylfl.runtime.records.run_dir import RunDirectory

    config = experiment.config
    logging, run = config.logging, (config.top.name, str(config.logging.id))
    address = str(logging.folder.joinpath(*run)) if logging.url is None else join(logging.url, *run)
    if not ((Path(address) / "config.yaml").is_file() if logging.url is None else exists(address)):
        return begin(experiment, watch)
    view = local_view(address)
    before, _ = saved(view, address, (), False, {}, list(foreign(config.resolved)))
    refuse_changes(before.resolved, config.resolved)
    as_before = (config.top.rounds, config.stop) == (before.top.rounds, before.stop)
    if as_before and (view / "summary.json").is_file():
        done = len(RunDirectory(view).metrics())
        reason = json.loads((view / "summary.json").read_text()).get("stopped_early")
        ended = (
            f"stopped after {done} of {config.top.rounds} rounds: {reason}" if reason else f"all {done} rounds are done"
        )
        remedy = "another stop.target or stop.patience" if reason and config.stop.metric else "a larger value of rounds"
        return f"{ended}; {remedy} continues it"
    with reopened(local_folder(address), before, experiment) as run_dir:
        return carry_out(experiment, run_dir, True, watch, ())


@contextmanager
def reopened(folder: Path, before: Config, experiment: Experiment) -> Iterator[RunDirectory]:
    """A context with the locked directory of a run that is resumed; before: the config that is saved there."""
    from raylfl.runtime.records.run_dir import RunDirectory

    config = experiment.config
    with closing(RunDirectory(folder).open()) as run_dir:
        run_dir.write_config(config.resolved)
        changed = identity(config.resolved, of="digest") != identity(before.resolved, of="digest")
        if changed and (folder / IDENTITY).is_file():
            run_dir.write(IDENTITY, "")  # more rounds or other evaluations: another run
        try:
            yield run_dir
        except BadConfig:
            if len(run_dir.metrics()) <= before.resolved["rounds"]:  # otherwise the saved config would be refused, too
                run_dir.write_config(before.resolved)
            raise


def saved(
    folder: Path,
    address: str | Path,
    overrides: Sequence[str],
    trust: bool,
    objects: Objects,
    known: Collection[str] = (),
) -> tuple[Config, Config]:
    """Returns two configs: the one saved in a run directory, and the same with these overrides and objects.

    address: the folder, or the URL that it was copied from, for messages. trust, known: as in `resume`. Raises
    BadConfig, and UnusableConfig if the saved config is the reason.
    """
    if not (folder / "config.yaml").is_file():
        inside = sorted(path.parent for depth in ("*", "*/*") for path in folder.glob(f"{depth}/config.yaml"))
        hint = f"; `raylfl runs {folder}` lists the {len(inside)} runs in it, such as {inside[-1]}" if inside else ""
        raise BadConfig(f"{address} is not a run directory: it has no config.yaml{hint}")
    from raylfl.runtime.records.files import require_inside
    from raylfl.runtime.records.provenance import on_trust, read, require_trust

    require_inside(folder)
    composed = compose(folder / "config.yaml")
    if not trust:
        passed = {composed[g].get("class_path") for g in objects if isinstance(composed.get(g), dict)}
        way, trusted = f"{on_trust(address)}, or trust=True from Python", passed & set(read(folder).left_out)
        require_trust(folder / "config.yaml", composed, {*known, *trusted}, way, address)
    again = _objects_again(folder, composed, address, trust, objects)
    try:
        before = load_config(folder / "config.yaml", (), ObjectLayer({}, again.objects))
    except BadConfig as error:
        raise UnusableConfig(error.problems) from error
    return before, load_config(before.resolved, overrides, again)


def _objects_again(
    folder: Path, said: dict[str, Any], address: str | Path, trust: bool, objects: Objects
) -> ObjectLayer:
    """The objects that the config of a saved run cannot name, from the caller or, with trust, from objects.pkl.

    Raises UnusableConfig if an object is neither given nor importable.
    """
    from raylfl.runtime.records.provenance import on_trust, read

    kept = read(folder)
    if not kept.left_out:
        return object_layer(objects)
    said["availability"] = (said.get("participation") or {}).get("availability")
    paths = {group: str((said.get(group) or {}).get("class_path")) for group in GROUPS}
    again = object_layer(objects, {group: path for group, path in paths.items() if path in kept.left_out})
    known = {**(kept.load(folder) if trust else {}), **again.objects}
    unknown = set(kept.left_out) - set(known)
    missing = {path: group for group, path in paths.items() if path in unknown and not can_import(path, group)}
    if missing:
        arguments = ", ".join(f"{group}=..." for group in missing.values())
        trusted = any(kept.left_out[path] is None for path in missing) and not trust
        way = f"{on_trust(address)} (from Python trust=True) runs the code in its objects.pkl, or " if trusted else ""
        raise UnusableConfig(
            f"{address} was started with {', '.join(missing)}, which its config cannot name: {way}from Python "
            f"raylfl.resume({str(address)!r}, {arguments})"
        )
    return ObjectLayer(again.layer, known)


def check_runtime(groups: Mapping[str, Any]) -> None:
    """Raises MissingExtra or BadConfig, without importing Ray, if it is missing or its address is no cluster."""
    runtime: RuntimeConfig = groups["runtime"]
    if runtime.backend == "ray":
        require("ray", what="runtime.backend=ray", instead="runtime.backend=local")
        from raylfl.runtime.ray.connection import check_address

        check_address(runtime)


def checked(config: Config) -> Experiment:
    """Builds the experiment of a config, and tries a training step and an evaluation step. Raises BadConfig."""
    with one_at_a_time(), exits_as_errors():
        if config.runtime.backend == "ray":
            config.logging.check_shared()
        if config.logging.loggers:
            from raylfl.runtime.records.loggers import check_loggers

            check_loggers(config.logging.chosen)
        from raylfl.experiment.assemble import assemble
        from raylfl.runtime.check import check

        return check(assemble(config))


def begin(experiment: Experiment, watch: Watch | None, callbacks: Sequence[Callback] = ()) -> Result:
    with new_run_directory(experiment, quiet=watch is not None) as run_dir:
        return carry_out(experiment, run_dir, False, watch, callbacks)


@contextmanager
def new_run_directory(experiment: Experiment, quiet: bool) -> Iterator[RunDirectory]:
    """A context with a new, locked run directory that contains the files written before the first round.

    A line about objects that a resume will need is added to the experiment's warnings and, unless quiet, printed on
    stderr.
    """
    from raylfl.runtime.records.provenance import keep
    from raylfl.runtime.records.run_dir import RunDirectory
    from raylfl.runtime.session import write_records

    config = experiment.config
    logging, top = config.logging, config.top
    with closing(RunDirectory.create(logging.folder, top.name, logging.id, top.seed, logging.url)) as run_dir:
        write_records(experiment, run_dir)
        if (line := keep(run_dir, config.objects)) is not None:
            experiment.warnings.append(line)
            if not quiet:
                print(f"raylfl: {line}", file=sys.stderr)
        yield run_dir


Rounds = Generator[Progress, str | None, None]  # sending a reason to the generator ends the run early


def rounds_of(experiment: Experiment, run_dir: RunDirectory, again: bool, paced: bool) -> Rounds:
    """Yields the progress of a run after each round; a reason (a text) sent to the generator ends the run early.

    again: whether the run is resumed. paced: whether progress contains the parameters, and the next round starts only
    when its progress is requested; if the generator is closed early, a checkpoint is saved. Between rounds, torch has
    the caller's global settings. If BadConfig is raised before the first round of a new run, the run directory is
    deleted.
    """
    local, reason = experiment.config.runtime.backend == "local", None
    if local:
        from raylfl.runtime import session

        rows = session.rows_in_process(experiment, run_dir, again, paced=paced)
    else:
        from raylfl.runtime.ray import remote

        rows = remote.rows(experiment, run_dir, again, paced=paced)
    with closing(rows):
        while True:
            try:
                with one_at_a_time() if local else nullcontext():  # Ray's workers compute in their own processes
                    metrics, messages, params = rows.send(reason)
            except StopIteration:
                return
            except BadConfig:
                if not (again or run_dir.metrics()):
                    run_dir.delete()
                raise
            reason = yield Progress(experiment, run_dir.path, metrics, messages, params, again)


def carry_out(
    experiment: Experiment, run_dir: RunDirectory, again: bool, watch: Watch | None, callbacks: Sequence[Callback]
) -> Result:
    """Executes a run in its directory; again: whether it is resumed. The other arguments are those of `run`.

    Errors get a note with the `raylfl resume` command, except those that say what to do.
    """
    from raylfl.python.console import Watcher
    from raylfl.runtime.records.files import Displaced
    from raylfl.runtime.session import Interrupted

    try:
        for callback in callbacks:
            callback.on_run_start(experiment.config, run_dir.path)
        if isinstance(watch, Watcher):
            watch.start(experiment, run_dir.path, again)
        reason = None
        with sigterm_interrupts(), closing(rounds_of(experiment, run_dir, again, bool(callbacks))) as stream:
            while True:
                try:
                    progress = stream.send(reason)
                except StopIteration:
                    break
                if watch is not None:
                    watch(progress)
                new = progress.params
                reason = None if new is None else reason_to_stop(callbacks, progress.metrics, new)
    except (Interrupted, Displaced):
        raise
    except (Exception, KeyboardInterrupt) as error:
        if run_dir.path.is_dir():
            error.add_note(f"raylfl resume {run_dir.address} continues it")
        raise
    result = result_of(experiment.config, run_dir)
    for callback in callbacks:
        callback.on_run_end(result)
    return result
