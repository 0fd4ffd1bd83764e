"""Images in folders named after their classes, `<half>/<class>/<image>`; the two halves are training and test set."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np
import torch

from raylfl.components.extras import require
from raylfl.data import DATA
from raylfl.data.base import data_missing, data_path
from raylfl.data.image import ImageData, normalised
from raylfl.errors import BadValue, DataMissing

ENDINGS = (".jpg", ".jpeg", ".png")
FORM = 4  # format of the cache; a new number invalidates old caches
Half = dict[str, np.ndarray[Any, Any]]


@DATA.register("image_folder")
class ImageFolder(ImageData):
    """Your own images: a folder or tar file of `<half>/<class>/<image>`, read once and cached as arrays.

    The two halves are the training set and the test set.
    path: the folder or the tar file (.tar, .tgz, .tar.gz), relative to the working directory, or else below the root
    (RAYLFL_DATA).
    train: the folder of the training images, below `path`.
    test: the folder of the test images, below `path`.
    size: images are cropped to their middle square and resized to size x size; null: they must all have one size.
    grey: one channel instead of three.
    augment: training images are shifted by -4..4 pixels each way and mirrored with probability 1/2.
    mean, std: pixels 0..1 become (x - mean)/std; one number, or one per channel.
    cache: the folder of the cached arrays; null: `raylfl/image_folder` below XDG_CACHE_HOME or ~/.cache.
    root: the folder above `path`; null: RAYLFL_DATA or ~/.cache/raylfl.
    """

    def __init__(
        self,
        path: str = "images",
        train: str = "train",
        test: str = "test",
        size: int | None = None,
        grey: bool = False,
        augment: bool = False,
        mean: tuple[float, ...] = (0.5,),
        std: tuple[float, ...] = (0.5,),
        cache: str | None = None,
        root: str | None = None,
    ):
        if size is not None and not 1 <= size <= 4096:
            raise BadValue("size", got=size, need="1..4096 pixels, or null")
        if train == test:
            raise BadValue(
                "test", got=test, need="a folder other than train, or test scores would be scores on training images"
            )
        transform = normalised(mean, std, 1 if grey else 3, augment)
        source = data_path(path, root)
        if not source.exists():
            raise _missing(f"{source} is missing", train, test)
        halves, self.classes, self.notes = arrays(source, (train, test), size, grey, _cache_folder(cache))
        tensors = [(torch.from_numpy(half["x"]), torch.from_numpy(half["y"])) for half in halves]
        self.hold(tensors[0], tensors[1], len(self.classes), transform)


def arrays(
    source: Path, halves: Sequence[str], size: int | None, grey: bool, cache: Path
) -> tuple[list[Half], list[str], list[str]]:
    """The halves {"x" uint8 [n, C, H, W], "y" int64 [n]} in the order of `halves`, the names of the classes, and notes.

    The notes name class folders and files that are left out, and classes without test images.

    source: the folder or tar file. It is read once; later calls map the files of the cache folder into memory. The
    cache is found by a digest of the names, sizes and modification times of all images, or of the tar file.
    """
    folder = cache / f"{source.name.split('.')[0]}-{digest(source, halves, size, grey)}"
    if (kept := _kept(folder)) is not None:
        return kept
    try:
        with _own(folder) as part:
            _keep(part, *_read(source, halves, size, grey, part))
    except OSError:  # the cache is not writable: the next start reads the images again
        return _read(source, halves, size, grey, None)
    return _kept(folder) or _read(source, halves, size, grey, None)


def _kept(folder: Path) -> tuple[list[Half], list[str], list[str]] | None:
    """The halves, class names and notes in this cache folder; None if it is missing or damaged."""
    try:
        classes, notes = json.loads((folder / "classes.json").read_text())
        found = [{key: np.load(folder / f"{key}{i}.npy", mmap_mode="c") for key in ("x", "y")} for i in range(2)]
    except (OSError, ValueError, EOFError):
        return None
    return found, classes, notes


def digest(source: Path, halves: Sequence[str], size: int | None, grey: bool) -> str:
    """A digest of 16 hex digits of the reading options and of the source files' names, sizes and modification times.

    For a tar file, the path, size and modification time of the tar file itself are used.
    """
    if source.is_dir():
        paths = sorted(path for half in halves for path in (source / half).rglob("*") if path.is_file())
        facts = [f"{path.relative_to(source)} {(stat := path.stat()).st_size} {stat.st_mtime_ns}" for path in paths]
    else:
        stat = source.stat()
        facts = [f"{source.resolve()} {stat.st_size} {stat.st_mtime_ns}"]
    text = "\n".join([f"{FORM} {list(halves)} {size} {grey}", *facts])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(
    source: Path, halves: Sequence[str], size: int | None, grey: bool, folder: Path | None
) -> tuple[list[Half], list[str], list[str]]:
    """The halves, the class names and the notes, read from the source. Raises DataMissing.

    folder: the folder of the .npy files to which the pixels are written; None: they are kept in memory.
    """
    require("PIL", what="data.name=image_folder")
    labels, notes = _labels(source, halves)
    classes = sorted(set(labels[halves[0]].values()))
    number = {label: k for k, label in enumerate(classes)}
    rows = {half: {name: row for row, name in enumerate(found)} for half, found in labels.items()}
    pixels_of: dict[str, np.ndarray[Any, Any]] = {}
    first: tuple[tuple[int, ...], str] | None = None  # shape and name
    for name, content in _files(source, halves):
        half = PurePosixPath(name).parts[-3]
        x = pixels(content(), name, size, grey)
        first = first or (x.shape, name)
        if first[0] != x.shape:
            said = f"{first[0][1:]} ({first[1]}) and {x.shape[1:]} pixels ({name})"
            raise _missing(
                f"{source}: images of different sizes, {said}; data.init_args.size makes them alike", *halves
            )
        if half not in pixels_of:
            shape, file = (len(rows[half]), *x.shape), None if folder is None else folder / f"x{halves.index(half)}.npy"
            pixels_of[half] = (
                np.empty(shape, x.dtype) if file is None else np.lib.format.open_memmap(file, "w+", x.dtype, shape)
            )
        pixels_of[half][rows[half][name]] = x
    codes = {half: np.array([number[label] for label in found.values()], np.int64) for half, found in labels.items()}
    return [{"x": pixels_of[half], "y": codes[half]} for half in halves], classes, notes


def _labels(source: Path, halves: Sequence[str]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """For each half, image name -> label (the name of the class folder), sorted by label and name; and the notes.

    The notes name class folders and files that are left out, and classes without test images. Raises DataMissing if a
    half has no images, or if the test set has a label that the training set has not.
    """
    found: dict[str, list[tuple[str, str]]] = {half: [] for half in halves}
    others = list[str]()
    for name, _ in _files(source, halves, others):
        half, label = PurePosixPath(name).parts[-3:-1]
        found[half].append((label, name))
    train, test = halves
    for half, images in found.items():
        if not images:
            raise _missing(f"{source} holds no {half}/<class>/*.jpg or *.png", train, test)
    strange = sorted({label for label, _ in found[test]} - {label for label, _ in found[train]})
    if strange:
        raise _missing(f"{source}: {test} has classes that {train} has not ({', '.join(strange[:3])})", train, test)
    labels, notes = {half: {label for label, _ in images} for half, images in found.items()}, _notes(others)
    for half in halves:
        if source.is_dir() and (empty := sorted(_folders(source / half) - labels[half])):
            notes.append(f"no images in {_few(empty)} of {source / half}, which are left out")
    if untested := sorted(labels[train] - labels[test]):
        notes.append(f"{source / test} has no images of {_few(untested)}: test scores leave them out")
    return {half: {name: label for label, name in sorted(images)} for half, images in found.items()}, notes


def _notes(others: Sequence[str]) -> list[str]:
    """The notes on the files that are left out: those of other suffixes, and images that are not in a class folder."""
    misplaced = sorted(name for name in others if PurePosixPath(name).suffix.lower() in ENDINGS)
    suffixes = Counter(PurePosixPath(name).suffix.lower() or "none" for name in others)
    kinds = [f"{count} of suffix {suffix}" for suffix, count in sorted(suffixes.items()) if suffix not in ENDINGS]
    notes = []
    if kinds:
        notes.append(f"files other than {', '.join(ENDINGS)} are left out: {_few(kinds)}")
    if misplaced:
        notes.append(f"{len(misplaced)} images outside <half>/<class>/ are left out: {_few(misplaced)}")
    return notes


def _folders(half: Path) -> set[str]:
    return {path.name for path in half.iterdir() if path.is_dir() and not path.name.startswith(".")}


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _files(
    source: Path, halves: Sequence[str], others: list[str] | None = None
) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Pairs (name, a function that reads the content) of every image `.../<half>/<class>/<image>`, in any order.

    Names with a dot in front, such as macOS's `._cat.png`, are no images. others: extended by the names of other files
    in class folders, and of images elsewhere below a half.
    """
    others = [] if others is None else others
    if source.is_dir():
        for half in halves:
            others += _images_in(source, (source / half).glob("*"))
            for path in sorted((source / half).glob("*/*")):
                if _hidden(path):
                    continue
                if path.suffix.lower() in ENDINGS:
                    yield path.relative_to(source).as_posix(), path.read_bytes
                elif path.is_dir():
                    others += _images_in(source, path.rglob("*"))
                else:
                    others.append(path.relative_to(source).as_posix())
        return
    try:
        with tarfile.open(source) as archive:
            for member in archive:  # nothing is unpacked to disk
                name = PurePosixPath(member.name)
                image = member.isfile() and len(name.parts) >= 3 and name.suffix.lower() in ENDINGS
                if image and name.parts[-3] in halves and not _hidden(name):
                    yield member.name, partial(_content, archive, member, halves)
                elif member.isfile() and not _hidden(name) and set(halves) & set(name.parts[:-1]):
                    in_class = len(name.parts) >= 3 and name.parts[-3] in halves
                    others += [member.name] * (in_class or name.suffix.lower() in ENDINGS)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise _missing(f"{source} is damaged, or no tar file ({error})", *halves) from error


def _images_in(source: Path, paths: Iterable[Path]) -> list[str]:
    """The names of the images among these paths, relative to the source."""
    images = (path for path in paths if path.suffix.lower() in ENDINGS and not path.name.startswith("."))
    return [path.relative_to(source).as_posix() for path in images]


def _hidden(image: PurePath) -> bool:
    """Whether the image or its class folder has a name with a dot in front."""
    return any(part.startswith(".") for part in image.parts[-2:])


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, halves: Sequence[str]) -> bytes:
    try:
        file = archive.extractfile(member)
        assert file is not None  # a plain file has content
        return file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise _missing(f"the tar file is damaged at {member.name} ({error})", *halves) from error


def pixels(content: bytes, name: str, size: int | None, grey: bool) -> np.ndarray[Any, Any]:
    """The pixels of an image file, uint8 [C, H, W]. Raises DataMissing if it cannot be read.

    content: the file's bytes. size: the image is cropped to its middle square and resized to size x size; None: it
    keeps its size. grey: one channel instead of three.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as opened:
            if opened.mode.startswith(("I", "F")):  # a conversion to 8 bits would cut values above 255
                raise DataMissing(
                    f"data.name=image_folder: {name} has more than 8 bits per pixel (mode {opened.mode}); convert all "
                    "images to 8 bits with one range of values, for example with `mogrify -depth 8`"
                )
            image = opened.convert("L" if grey else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = "its content is of no known format" if isinstance(error, UnidentifiedImageError) else error
        raise DataMissing(f"data.name=image_folder: {name} cannot be read as an image ({why}); remove it") from error
    if size is not None:
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    values = np.array(image, dtype=np.uint8)
    return values[None] if grey else np.ascontiguousarray(values.transpose(2, 0, 1))


def _cache_folder(cache: str | None) -> Path:
    if cache is not None:
        return Path(cache).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "raylfl" / "image_folder"


def _keep(folder: Path, halves: Sequence[Half], classes: Sequence[str], notes: Sequence[str]) -> None:
    """Writes labels, class names and notes to this cache folder, which contains the pixels already."""
    for i, half in enumerate(halves):
        if isinstance(pixels := half["x"], np.memmap):
            pixels.flush()
        np.save(folder / f"y{i}.npy", half["y"])
    (folder / "classes.json").write_text(json.dumps([list(classes), list(notes)]))


@contextmanager
def _own(folder: Path) -> Iterator[Path]:
    """A context with a new temporary folder, which on exit without an error replaces `folder`.

    If another process creates `folder` at the same moment, that folder stays.
    """
    part = folder.with_name(f".{folder.name}-{os.getpid()}")
    part.mkdir(parents=True)
    try:
        yield part
        shutil.rmtree(folder, ignore_errors=True)  # a damaged cache, if any
        with suppress(OSError):  # another process was first
            part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _missing(problem: str, train: str, test: str) -> DataMissing:
    expected = f"a folder or tar file of {train}/<class>/* and {test}/<class>/*, JPEG or PNG, at data.init_args.path"
    return data_missing("image_folder", problem, expected, above="it", download=False)
