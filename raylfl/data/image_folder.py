"""Images in folders named after their classes, `<half>/<class>/<image>`; the two halves are training and test set."""

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from raylfl.components.extras import require
from raylfl.components.options import Doc, Ge, Le
from raylfl.data import DATA
from raylfl.data.base import data_missing, data_path, data_root
from raylfl.data.image import ImageData, normalised
from raylfl.errors import BadValue

ENDINGS = (".jpg", ".jpeg", ".png")
FORM = 5  # format of the cache; a new number invalidates old caches
Half = dict[str, np.ndarray[Any, Any]]


class Unreadable(Exception):
    """The reason why images cannot be read as arrays."""


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

    name: ClassVar[str] = "image_folder"

    def __init__(
        self,
        path: str = "images",
        train: str = "train",
        test: str = "test",
        size: Annotated[int, Ge(1), Le(4096), Doc("the side of the images in pixels")] | None = None,
        grey: bool = False,
        augment: bool = False,
        mean: tuple[float, ...] = (0.5,),
        std: tuple[float, ...] = (0.5,),
        cache: str | None = None,
        root: str | None = None,
    ):
        if train == test:
            need = "a folder other than train, or test scores would be scores on training images"
            raise BadValue("test", got=test, need=need)
        transform = normalised(mean, std, 1 if grey else 3, augment)
        source = data_path(path, root)
        require("PIL", what=f"data.name={self.name}")
        usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "raylfl", "image_folder")
        folder = Path(usual if cache is None else cache).expanduser()
        try:
            halves, self.classes, self.notes = arrays(source, (train, test), size, grey, folder)
        except Unreadable as problem:
            expected = f"{train}/<class>/* and {test}/<class>/*, JPEG or PNG, in the folder or tar file {source}"
            above = None if source.exists() or Path(path).is_absolute() else path
            raise data_missing(self.name, str(problem), expected, above, download=False) from problem
        tensors = [(torch.from_numpy(half["x"]), torch.from_numpy(half["y"])) for half in halves]
        self.hold(tensors[0], tensors[1], len(self.classes), transform)


def arrays(
    source: Path, halves: Sequence[str], size: int | None, grey: bool, cache: Path
) -> tuple[list[Half], list[str], list[str]]:
    """The halves {"x" uint8 [n, C, H, W], "y" int64 [n]} in the order of `halves`, the names of the classes, and notes.

    The notes name class folders and files that are left out, and classes without test images.

    source: the folder or tar file. It is read once; later calls map the files of the cache folder into memory. The
    cache is found by a digest of the names, sizes and modification times of all images, or of the tar file. If it
    cannot be written, the arrays are in files that are removed at once, and exist as long as they are mapped. Raises
    Unreadable.
    """
    if not source.exists():
        raise Unreadable(f"{source} is missing")
    folder = cache / f"{source.name.split('.')[0]}-{digest(source, halves, size, grey)}"
    if (stored := _load(folder)) is not None:
        return stored
    try:
        cache.mkdir(parents=True, exist_ok=True)
        draft = TemporaryDirectory(dir=cache)
    except OSError:
        draft = TemporaryDirectory()
    with draft as name:
        part = Path(name, "arrays")
        part.mkdir()
        _write(part, source, halves, size, grey)
        result = _load(part)
        shutil.rmtree(folder, ignore_errors=True)  # a damaged cache, if any
        with suppress(OSError):  # another process was first, or the cache cannot be written
            part.rename(folder)
    assert result is not None
    return result


def _load(folder: Path) -> tuple[list[Half], list[str], list[str]] | None:
    try:
        classes, notes = json.loads((folder / "classes.json").read_text())
        halves = [{key: np.load(folder / f"{key}{i}.npy", mmap_mode="c") for key in ("x", "y")} for i in range(2)]
    except (OSError, ValueError, EOFError):
        return None
    return halves, classes, notes


def digest(source: Path, halves: Sequence[str], size: int | None, grey: bool) -> str:
    """A digest of 16 hex digits of the reading options and of the source files' names, sizes and modification times.

    For a tar file, the path, size and modification time of the tar file itself are used.
    """
    paths = sorted(_paths(source, halves)) if source.is_dir() else [source.resolve()]
    facts = [f"{path} {(stat := path.stat()).st_size} {stat.st_mtime_ns}" for path in paths]
    text = "\n".join([f"{FORM} {list(halves)} {size} {grey}", *facts])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(folder: Path, source: Path, halves: Sequence[str], size: int | None, grey: bool) -> None:
    labels, notes = _labels(source, halves)
    classes = sorted(set(labels[halves[0]].values()))
    rows = {name: (i, row) for i, half in enumerate(halves) for row, name in enumerate(labels[half])}
    counts = [len(labels[half]) for half in halves]
    first, columns = "", list[np.ndarray[Any, Any]]()
    for name, content in _files(source, halves):
        if name not in rows:
            continue
        image = pixels(content(), name, size, grey)
        if not columns:
            shapes = [(count, *image.shape) for count in counts]
            columns = [
                np.lib.format.open_memmap(folder / f"x{i}.npy", "w+", np.uint8, shape) for i, shape in enumerate(shapes)
            ]
            first = name
        i, row = rows[name]
        if image.shape != columns[i].shape[1:]:
            sizes = f"{columns[i].shape[2:]} ({first}) and {image.shape[1:]} pixels ({name})"
            raise Unreadable(f"{source}: images of different sizes, {sizes}; data.init_args.size makes them alike")
        columns[i][row] = image
    for i, half in enumerate(halves):
        np.save(folder / f"y{i}.npy", np.array([classes.index(label) for label in labels[half].values()], np.int64))
    (folder / "classes.json").write_text(json.dumps([classes, notes]))


def _labels(source: Path, halves: Sequence[str]) -> tuple[dict[str, dict[str, str]], list[str]]:
    """For each half, image name -> label (its class folder), sorted by label and name; and the notes.

    Every file `.../<half>/<class>/<image>` is an image, unless a dot is in front, as in macOS's `._cat.png`. Raises
    Unreadable if a half has no images, or if the test set has a label that the training set has not.
    """
    images: dict[str, list[tuple[str, str]]] = {half: [] for half in halves}
    others = list[str]()
    for name, _ in _files(source, halves):
        path = PurePosixPath(name)
        in_class, is_image = path.parts[-3:-2] and path.parts[-3] in halves, path.suffix.lower() in ENDINGS
        if any(part.startswith(".") for part in path.parts[-2:]):
            continue
        if in_class and is_image:
            images[path.parts[-3]].append((path.parts[-2], name))
        elif in_class or (is_image and set(halves) & set(path.parts[:-1])):
            others.append(name)
    for half in halves:
        if not images[half]:
            raise Unreadable(f"{source} holds no {half}/<class>/*.jpg or *.png")
    train, test = halves
    labels, notes = {half: {label for label, _ in pairs} for half, pairs in images.items()}, _notes(others)
    if strange := sorted(labels[test] - labels[train]):
        raise Unreadable(f"{source}: {test} has classes that {train} has not ({', '.join(strange[:3])})")
    for top in (source / half for half in halves if source.is_dir()):
        folders = {path.name for path in top.iterdir() if path.is_dir() and not path.name.startswith(".")}
        if empty := sorted(folders - labels[top.name]):
            notes.append(f"no images in {_few(empty)} of {top}, which are left out")
    if untested := sorted(labels[train] - labels[test]):
        notes.append(f"{source / test} has no images of {_few(untested)}: test scores leave them out")
    return {half: {name: label for label, name in sorted(pairs)} for half, pairs in images.items()}, notes


def _notes(others: Sequence[str]) -> list[str]:
    misplaced = sorted(name for name in others if PurePosixPath(name).suffix.lower() in ENDINGS)
    suffixes = Counter(PurePosixPath(name).suffix.lower() or "none" for name in others)
    kinds = [f"{count} of suffix {suffix}" for suffix, count in sorted(suffixes.items()) if suffix not in ENDINGS]
    notes = []
    if kinds:
        notes.append(f"files other than {', '.join(ENDINGS)} are left out: {_few(kinds)}")
    if misplaced:
        notes.append(f"{len(misplaced)} images outside <half>/<class>/ are left out: {_few(misplaced)}")
    return notes


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _files(source: Path, halves: Sequence[str]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Pairs (name, a function that reads the content) of the files of a folder or tar file, in any order."""
    if source.is_dir():
        yield from ((path.relative_to(source).as_posix(), path.read_bytes) for path in _paths(source, halves))
        return
    try:
        with tarfile.open(source) as archive:
            for member in archive:  # nothing is unpacked to disk
                if member.isfile():
                    yield member.name, partial(_content, archive, member)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Unreadable(f"{source} is damaged, or no tar file ({error})") from error


def _paths(source: Path, halves: Sequence[str]) -> Iterator[Path]:
    for half in halves:
        for folder, _, names in os.walk(source / half, followlinks=True):
            yield from (Path(folder, name) for name in names)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    try:
        file = archive.extractfile(member)
        assert file is not None  # a plain file has content
        return file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Unreadable(f"the tar file is damaged at {member.name} ({error})") from error


def pixels(content: bytes, name: str, size: int | None, grey: bool) -> np.ndarray[Any, Any]:
    """The pixels of an image file, uint8 [C, H, W]. Raises Unreadable if it cannot be read.

    content: the file's bytes. size: the image is cropped to its middle square and resized to size x size; None: it
    keeps its size. grey: one channel instead of three.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content)) as opened:
            if opened.mode.startswith(("I", "F")):  # a conversion to 8 bits would cut values above 255
                raise Unreadable(
                    f"{name} has more than 8 bits per pixel (mode {opened.mode}); convert all "
                    "images to 8 bits with one range of values, for example with `mogrify -depth 8`"
                )
            image = opened.convert("L" if grey else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = "its content is of no known format" if isinstance(error, UnidentifiedImageError) else error
        raise Unreadable(f"{name} cannot be read as an image ({why}); remove it") from error
    if size is not None:
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    values = np.array(image, dtype=np.uint8)
    return values[None] if grey else np.ascontiguousarray(values.transpose(2, 0, 1))


@DATA.register("cinic10", paper="Darlow 2018")
class Cinic10(ImageFolder):
    """The classes of CIFAR-10 with images of ImageNet added: 90,000 + 90,000 colour images of 32x32 pixels.

    The images are CINIC-10/train/<class>/*.png and CINIC-10/test/<class>/*.png below the root, as unpacked from
    CINIC-10.tar.gz (datashare.ed.ac.uk, 10283/3192); the folder valid is not used. They are read once and cached as
    arrays, like those of `image_folder`.
    root: the folder that contains CINIC-10; null: RAYLFL_DATA or ~/.cache/raylfl.
    augment: random crops (padding 4) and mirroring of training batches.
    mean, std: pixels 0..1 become (x - mean)/std.
    """

    name: ClassVar[str] = "cinic10"

    def __init__(
        self,
        root: str | None = None,
        augment: bool = False,
        mean: tuple[float, ...] = (0.4789, 0.4723, 0.4305),
        std: tuple[float, ...] = (0.2421, 0.2383, 0.2587),
    ):
        top = str(data_root(root))
        super().__init__("CINIC-10", augment=augment, mean=mean, std=std, root=top)
        if self.in_shape != (3, 32, 32):
            problem = f"the images have {self.in_shape[1:]} pixels instead of (32, 32)"
            raise data_missing(self.name, problem, f"CINIC-10 in {top}", above="CINIC-10", download=False)
