"""`image_folder`: images of a folder or tar file become arrays, are cached, and are refused with the reason."""

import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from raylfl.data.image_folder import ImageFolder
from raylfl.errors import BadValue, DataMissing

RNG = np.random.default_rng(0)
PIXELS = {
    "train/cat/b.png": RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8),
    "train/cat/a.png": RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8),
    "train/ant/c.png": RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8),
    "test/cat/d.png": RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8),
}
ORDER = ["train/ant/c.png", "train/cat/a.png", "train/cat/b.png"]  # by class, then by name


@pytest.fixture
def folder(tmp_path):
    """A folder of four PNG images and some other files."""
    top = tmp_path / "images"
    for name, pixels in PIXELS.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(top / name)
    (top / "train/cat/notes.txt").write_text("no image")
    (top / "README").write_text("of another half")
    return top


@pytest.fixture
def load(tmp_path):
    return lambda path, **options: ImageFolder(str(path), cache=str(tmp_path / "cache"), **options)


def test_the_second_time_the_arrays_come_from_the_cache_which_changed_arrays_leave_alone(folder, load, monkeypatch):
    first = load(folder).train_dataset.tensors[0].clone()
    for _ in range(2):
        x = load(folder).train_dataset.tensors[0]
        assert torch.equal(x, first)
        x.zero_()
    first = load(folder).train_dataset.tensors[0]
    monkeypatch.setattr("raylfl.data.image_folder._write", lambda *_: pytest.fail("read again"))
    assert torch.equal(load(folder).train_dataset.tensors[0], first)


def packed(folder, name="images.tgz", top=""):
    path = folder.parent / name
    with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as archive:
        archive.add(folder, arcname=top)
    return path


def forms(folder):
    return [folder, packed(folder), packed(folder, "plain.tar"), packed(folder, "deep.tar.gz", "some/where")]


def test_a_folder_and_a_tar_file_of_it_give_the_same_arrays(folder, load):
    expected = np.stack([PIXELS[name].transpose(2, 0, 1) for name in ORDER])
    for path in forms(folder):
        data = load(path)
        x, y = data.train_dataset.tensors
        np.testing.assert_array_equal(x, expected, err_msg=str(path))
        assert (y.tolist(), data.classes, data.num_classes) == ([0, 1, 1], ["ant", "cat"], 2)
        assert (x.dtype, y.dtype, data.in_shape) == (torch.uint8, torch.int64, (3, 6, 8))
        assert data.test_dataset.tensors[1].tolist() == [1]
        assert torch.equal(data.targets, y)


def test_a_changed_image_or_option_is_read_again(folder, load):
    before = load(folder).train_dataset.tensors[0]
    assert load(folder, grey=True).in_shape == (1, 6, 8)
    assert load(folder, size=4).in_shape == (3, 4, 4)
    Image.fromarray(255 - PIXELS[ORDER[0]]).save(folder / ORDER[0])
    after = load(folder).train_dataset.tensors[0]
    assert torch.equal(after[0], 255 - before[0])


def test_a_damaged_cache_is_replaced(folder, load, tmp_path):
    before = load(folder).train_dataset.tensors[0].clone()  # of a file that is damaged below
    (kept,) = (tmp_path / "cache").iterdir()
    whole = (kept / "x0.npy").read_bytes()
    (kept / "x0.npy").write_bytes(whole[: len(whole) // 2])
    assert torch.equal(load(folder).train_dataset.tensors[0], torch.from_numpy(np.load(kept / "x0.npy")))
    assert (kept / "x0.npy").read_bytes() == whole
    assert torch.equal(before, torch.from_numpy(np.load(kept / "x0.npy")))


def test_a_cache_that_cannot_be_written_costs_only_time(folder, tmp_path):
    (tmp_path / "file").write_text("")
    data = ImageFolder(str(folder), cache=str(tmp_path / "file" / "below"))
    assert len(data.train_dataset) == 3


def test_jpeg_images_and_grey_ones_have_the_channels_asked_for(tmp_path, load):
    for name in ("train/x/a.jpg", "test/x/b.JPEG"):
        (tmp_path / "i" / name).parent.mkdir(parents=True)
        Image.fromarray(np.full((8, 8), 200, dtype=np.uint8)).save(tmp_path / "i" / name, format="JPEG")
    x = load(tmp_path / "i").train_dataset.tensors[0]
    assert x.shape == (1, 3, 8, 8)
    assert (x.float() - 200).abs().max() <= 2  # JPEG rounds
    assert torch.equal(x[:, :1], load(tmp_path / "i", grey=True).train_dataset.tensors[0])


def test_augmentation_is_of_training_images_only(folder, load):
    data = load(folder, augment=True)
    assert not data.train_transform.fixed
    assert data.test_transform.fixed


def deep(path):
    Image.fromarray(np.full((6, 8), 40_000, dtype=np.uint16)).save(path)


def test_hidden_files_and_folders_are_no_images(folder, load):
    """As macOS and notebooks leave them: `._a.png` beside a.png is no image."""
    (folder / "train/cat/._a.png").write_bytes(b"no image")
    (folder / "train/.ipynb_checkpoints").mkdir()
    (folder / "train/.ipynb_checkpoints/a.png").write_bytes(b"no image")
    for path in forms(folder):
        data = load(path)
        assert (len(data.train_dataset), data.classes) == (3, ["ant", "cat"])


def test_an_empty_class_folder_and_an_untested_class_are_named_also_from_the_cache(folder, load):
    (folder / "train/dog").mkdir()
    for _ in range(2):
        others, empty, untested = load(folder).notes
        assert others == "files other than .jpg, .jpeg, .png are left out: 1 of suffix .txt"
        assert "no images in dog" in empty
        assert "test has no images of ant" in untested


def test_files_that_are_left_out_are_counted_by_suffix_and_misplaced_images_are_named(folder, load):
    for name in ("train/cat/e.bmp", "train/ant/f.BMP", "test/cat/g.tiff", "test/cat/plain"):
        (folder / name).write_bytes(b"another format")
    for name in ("train/loose.png", "train/cat/more/h.png", "train/cat/more/deep/i.jpg", "test/cat/more/.hidden.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((folder / "train/cat/a.png").read_bytes())
    (folder / "other.png").write_bytes(b"of no half")
    for path in forms(folder):
        data = load(path)
        others, misplaced, _ = data.notes
        kinds = "2 of suffix .bmp, 1 of suffix .tiff, 1 of suffix .txt and 1 more"
        assert others == f"files other than .jpg, .jpeg, .png are left out: {kinds}"
        assert misplaced.startswith("3 images outside <half>/<class>/ are left out: ")
        assert "train/cat/more/deep/i.jpg" in misplaced
        assert len(data.train_dataset) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda top: (top / "test/dog").mkdir() or Image.new("RGB", (8, 6)).save(top / "test/dog/a.png"), "dog"),
        (lambda top: Image.new("RGB", (5, 5)).save(top / "train/cat/z.png"), "size makes them alike"),
        (
            lambda top: Image.new("RGB", (5, 5)).save(top / "test/cat/d.png"),
            r"\(5, 5\) pixels \(test/cat/d\.png\); .*size makes",
        ),
        (lambda top: (top / "train/cat/z.png").write_bytes(b"no image"), r"z\.png cannot be read.*of no known format"),
        (lambda top: deep(top / "train/cat/z.png"), r"z\.png has more than 8 bits.*convert"),
        (lambda top: (top / "test").rename(top / "val"), "holds no test/"),
    ],
)
def test_what_cannot_be_arrays_is_refused_with_the_reason(folder, load, change, message):
    change(folder)
    with pytest.raises(DataMissing, match=message) as caught:
        load(folder)
    assert "RAYLFL_DATA" not in str(caught.value)  # the folder is found


def test_a_truncated_and_a_missing_tar_file_are_reported(folder, load, tmp_path):
    path = packed(folder)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataMissing, match="is damaged"):
        load(path)
    with pytest.raises(DataMissing, match="nowhere is missing") as caught:
        load(tmp_path / "nowhere")
    assert "RAYLFL_DATA" not in str(caught.value)  # an absolute path does not depend on it
    with pytest.raises(DataMissing, match=r"nowhere is missing.*\n.*RAYLFL_DATA.* holds nowhere$"):
        load("nowhere")


@pytest.mark.parametrize(
    ("options", "key"), [({"size": 0}, "size"), ({"test": "train"}, "test"), ({"std": [0]}, "std")]
)
def test_options_that_cannot_be_are_refused(folder, load, options, key):
    with pytest.raises(BadValue, match=key):
        load(folder, **options)
