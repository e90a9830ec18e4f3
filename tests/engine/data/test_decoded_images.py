"""Images that stay decoded are bitwise those that Pillow decodes from the file."""

import copy
import io
import os
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from surestep.engine.data import decoded_images
from surestep.engine.data.decoded_images import DecodedImages

SIZE = 10**7


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Keep files that were written just now, in memory that no other test has."""
    monkeypatch.setattr(decoded_images, "_stores", {})
    monkeypatch.setattr(decoded_images, "_INEXACT_S", -1.0)


@pytest.fixture
def kept():
    return DecodedImages(SIZE)


def pixels(mode="RGB", seed=0):
    values = np.random.default_rng(seed).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    image = Image.fromarray(values).resize((40, 56))
    return image.quantize(16) if mode == "P" else image.convert(mode)


def save(path, mode="RGB", seed=0, **options):
    pixels(mode, seed).save(path, **options)
    return path


def describe(image):
    """All that a program can see of an image, after it has loaded."""
    image.load()
    palette = image.getpalette() if image.mode == "P" else None
    own = {
        name: value
        for name, value in vars(image).items()
        if name not in ("_im", "_fp", "_ended", "quantization", "palette", "_exif")
    }
    return type(image), image.tobytes(), palette, own, dict(image.getexif()), image.info


def assert_same(kept, path, use=describe):
    """Use an image as it is decoded, as it is kept the first time, and as it is copied."""
    with Image.open(path) as image:
        kind, plain = type(image), use(image)
    for _ in range(2):
        with kept.use(), Image.open(path) as image:
            assert isinstance(image, kind)
            assert use(image) == plain


EXIF = Image.Exif()
EXIF[0x0112] = 6
FILES = [
    *(("jpg", mode, {}) for mode in ("RGB", "L", "CMYK")),
    ("jpg", "RGB", {"progressive": True, "exif": EXIF, "dpi": (72, 72)}),
    *(("png", mode, {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    ("png", "P", {"transparency": 3}),
    ("png", "RGB", {"transparency": (1, 2, 3), "exif": EXIF}),
]


@pytest.mark.parametrize(("ending", "mode", "options"), FILES)
def test_image_is_that_of_the_file(kept, tmp_path, ending, mode, options):
    assert_same(kept, save(tmp_path / f"a.{ending}", mode, **options))
    assert len(kept.store) == 1


def test_png_with_text_after_its_pixels_is_the_same(kept, tmp_path):
    path = tmp_path / "a.png"
    raw = io.BytesIO()
    pixels().save(raw, "PNG")
    chunk = b"tEXtComment\0late"
    text = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    path.write_bytes(raw.getvalue()[:-12] + text + raw.getvalue()[-12:])
    assert_same(kept, path)
    assert_same(kept, path, lambda image: (image.load(), image.text)[1])


USES = {
    "convert": lambda image: image.convert("L").tobytes(),
    "draft": lambda image: (image.draft("L", (10, 10)), image.size, image.tobytes()),
    "thumbnail": lambda image: (image.thumbnail((9, 9)), image.size, image.tobytes()),
    "crop": lambda image: image.crop((1, 2, 9, 9)).tobytes(),
    "resize": lambda image: image.resize((9, 9), reducing_gap=2.0).tobytes(),
    "array": lambda image: np.asarray(image).tolist(),
    "copy": lambda image: image.copy().tobytes(),
    "shallow copy": lambda image: copy.copy(image).tobytes(),
    "pickle": lambda image: pickle.loads(pickle.dumps(image)).tobytes(),
    "transpose": lambda image: image.transpose(Image.Transpose.ROTATE_90).tobytes(),
    "header": lambda image: (image.size, image.mode, image.format, image.info),
}


@pytest.mark.parametrize("name", USES)
def test_use_of_an_image_gives_the_same(kept, tmp_path, name):
    path = save(tmp_path / "a.jpg")
    with kept.use():
        Image.open(path).load()
    assert_same(kept, path, USES[name])


def test_image_is_read_from_memory_the_second_time(kept, tmp_path, monkeypatch):
    path = save(tmp_path / "a.jpg")
    with kept.use():
        first = Image.open(path).convert("RGB").tobytes()
        monkeypatch.setattr(Image, "_getdecoder", forbid_jpeg(Image._getdecoder))
        assert Image.open(path).convert("RGB").tobytes() == first
        assert Image.open(str(path)).convert("RGB").tobytes() == first
        with open(path, "rb") as file:
            file.seek(9)  # Pillow reads from the start
            assert Image.open(file).convert("RGB").tobytes() == first
    with Image.open(path) as image, pytest.raises(AssertionError, match="jpeg"):
        image.load()


def forbid_jpeg(get):
    def get_other(mode, name, *rest):
        assert name != "jpeg", "the decoder jpeg is used"
        return get(mode, name, *rest)

    return get_other


def test_change_in_place_does_not_reach_the_next_image(kept, tmp_path):
    path = save(tmp_path / "a.jpg")
    plain = Image.open(path).tobytes()
    with kept.use():
        for _ in range(3):
            image = Image.open(path)
            image.paste((9, 9, 9), (0, 0, 30, 30))
            image.putpixel((33, 33), (1, 2, 3))
            image.close()
        assert Image.open(path).tobytes() == plain


def test_closed_image_and_context_are_as_in_pillow(kept, tmp_path):
    path = save(tmp_path / "a.jpg")
    with kept.use():
        for _ in range(2):
            with Image.open(path) as image:
                image.load()
            assert image.fp is None
            closed = Image.open(path)
            closed.close()
            with pytest.raises((ValueError, AssertionError)):
                closed.load()


def test_file_that_changes_is_decoded_again(kept, tmp_path):
    path = save(tmp_path / "a.jpg")
    with kept.use():
        Image.open(path).load()
        before = path.stat()
        other = save(tmp_path / "b.jpg", seed=1).read_bytes()
        path.write_bytes(other)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert Image.open(path).tobytes() == Image.open(io.BytesIO(other)).tobytes()


def test_file_that_has_just_changed_is_not_kept(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(decoded_images, "_INEXACT_S", 100.0)
    with kept.use():
        Image.open(save(tmp_path / "a.jpg")).load()
    assert not len(kept.store)


def test_truncated_file_fails_unless_pillow_allows_it(kept, tmp_path, monkeypatch):
    path = tmp_path / "a.jpg"
    path.write_bytes(save(tmp_path / "b.jpg").read_bytes()[:-200])
    with kept.use():
        for _ in range(2):
            with Image.open(path) as image, pytest.raises(OSError, match="truncated"):
                image.load()
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert_same(kept, path)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    with kept.use(), Image.open(path) as image, pytest.raises(OSError, match="truncated"):
        image.load()


def test_other_files_are_decoded_as_before(kept, tmp_path):
    frames = [pixels(seed=seed) for seed in range(3)]
    for name in ("a.gif", "a.png", "a.webp"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    save(tmp_path / "a.bmp")
    with kept.use():
        for path in sorted(tmp_path.iterdir()):
            with Image.open(path) as image:
                assert type(image) is type(Image.open(io.BytesIO(path.read_bytes())))
                image.seek(getattr(image, "n_frames", 1) - 1)
                image.load()
        in_memory = io.BytesIO(save(tmp_path / "b.jpg").read_bytes())
        assert type(Image.open(in_memory)) is JpegImageFile
    assert not len(kept.store)


def test_images_that_do_not_fit_are_decoded(tmp_path):
    paths = [save(tmp_path / f"{seed}.jpg", seed=seed) for seed in range(4)]
    kept = DecodedImages(3 * 40 * 56 * 3)
    for path in paths:
        assert_same(kept, path)
    assert (len(kept.store), kept.store.is_full) == (2, True)


def test_pillow_is_as_before_after_an_error(kept):
    plain = Image.open
    with pytest.raises(FileNotFoundError), kept.use():
        Image.open(Path("none.jpg"))
    assert Image.open is plain


def test_loaders_of_one_process_share_the_memory(tmp_path):
    one, other = DecodedImages(SIZE), DecodedImages(SIZE)
    assert one.store is other.store
