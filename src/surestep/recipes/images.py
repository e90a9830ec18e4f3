"""Handwritten digits on photos: JPEG files that Pillow decodes and augments, and a small ResNet.

Each file is a part of one of scikit-learn's two photos with one of its 1,797 digits on it, enlarged
and in a random color; train, val and test share no digit. The files are made once, in the cache
folder of the user. The recipe is written as one first writes it: one process that loads and trains,
fp32, small micro-batches, no compile. It decodes for most of its time, as training on photos
does beside a fast GPU, so `surestep tune images` has something to find.

To make the files takes about 76 seconds of one core.
"""

import os
import random
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn
from torch.utils.data import Dataset

import surestep
from surestep.recipes.digits import accuracy
from surestep.recipes.digits import images as read_digits

PIXELS = 32  # of a side of what the model gets
SPLITS = {"train": range(1200), "val": range(1200, 1500), "test": range(1500, 1797)}

config = surestep.Config(
    epochs=8,
    batch_size=16,
    micro_batch_size=8,
    optim=surestep.Optim(name="adamw", lr=3e-3),
    schedule=surestep.Schedule(name="cosine", warmup="5%"),
)


def make_files(files: int, size: int) -> Path:
    """Return the folder of the JPEG files, SPLIT/NUMBER-DIGIT.jpg; make them if it is not there.

    The folder gets its name when it is complete, so processes that make it at the same time do not
    disturb each other: the first one wins.

    Args:
        files: to train on; val and test have one for each digit.
        size: pixels of a file's side.
    """
    folder = find_cache() / f"{files}-files-of-{size}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        for split, chosen in SPLITS.items():
            _make_split(temporary / split, chosen, files if split == "train" else len(chosen), size)
        os.rename(temporary, folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def find_cache() -> Path:
    """Return the folder of all files: where surestep keeps what can be made again."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(os.environ.get("SURESTEP_CACHE_DIR") or Path(cache) / "surestep") / "images"


def _make_split(folder: Path, digits: range, files: int, size: int) -> None:
    """Make the files of one split, from the digits that it has."""
    folder.mkdir()
    ink, names = read_digits()
    photos, draw = read_photos(), random.Random(digits.start)
    for number in range(files):
        digit = digits[number % len(digits)]
        image = draw_digit(draw, photos[number % 2], ink[digit, 0], size)
        file = folder / f"{number:05}-{int(names[digit])}.jpg"
        add_grain(draw, image).save(file, quality=92, progressive=True)


def read_photos() -> list[Image.Image]:
    """Return the two photos of scikit-learn, each of 640 x 427 pixels."""
    found = find_spec("sklearn")  # not imported: that takes a second
    if found is None or found.origin is None:
        raise ModuleNotFoundError("The photos are in scikit-learn: pip install scikit-learn.")
    folder = Path(found.origin).parent / "datasets/images"
    return [Image.open(folder / name).convert("RGB") for name in ("china.jpg", "flower.jpg")]


def draw_digit(draw: random.Random, photo: Image.Image, ink: Tensor, size: int) -> Image.Image:
    """Return a part of a photo (size, size), enlarged, with a digit (8, 8) in [0, 1] on it."""
    side = draw.randrange(120, 300)
    left, top = draw.randrange(photo.width - side), draw.randrange(photo.height - side)
    image = photo.resize(
        (size, size), Image.Resampling.BICUBIC, (left, top, left + side, top + side)
    )
    width = round(size * draw.uniform(0.75, 0.95))
    mask = Image.fromarray((255 * ink.numpy()).astype(np.uint8)).resize((width, width))
    image = Image.blend(Image.new("RGB", image.size, "gray"), image, 0.6)
    light = draw.choice((20, 235))
    color = tuple(light + draw.randint(-20, 20) for _ in range(3))
    corner = draw.randrange(size - width), draw.randrange(size - width)
    image.paste(color, (*corner, corner[0] + width, corner[1] + width), mask)
    return image


def add_grain(draw: random.Random, image: Image.Image) -> Image.Image:
    """Return an image (size, size) with the grain of a photo, which enlarging has smoothed."""
    rng = np.random.default_rng(draw.getrandbits(32))
    grain = rng.integers(-14, 15, (*image.size, 1), dtype=np.int16)
    return Image.fromarray((np.array(image) + grain).clip(0, 255).astype(np.uint8))


class Photos(Dataset[tuple[Tensor, int]]):
    """The files of a split, each decoded when it is read.

    Args:
        folder: of the split.
        augments: whether each image is cropped, turned and colored at random.
    """

    def __init__(self, folder: Path, *, augments: bool) -> None:
        self.paths = sorted(folder.iterdir())
        self.augments = augments

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image (3, PIXELS, PIXELS) in [-1, 1], and its digit."""
        path = self.paths[index]
        image = Image.open(path).convert("RGB")
        image = augment(image) if self.augments else image.resize((PIXELS, PIXELS), reducing_gap=2)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.float() / 127.5 - 1, int(path.stem.rpartition("-")[2])


def augment(image: Image.Image) -> Image.Image:
    """Return a random part of an image, turned a little, in other colors. No digit is mirrored."""
    side = round(image.width * random.uniform(0.85, 1))
    left, top = random.randint(0, image.width - side), random.randint(0, image.height - side)
    box = (left, top, left + side, top + side)
    part = image.resize((PIXELS, PIXELS), box=box, reducing_gap=2)
    part = part.rotate(random.uniform(-10, 10), Image.Resampling.BILINEAR)
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        part = change(part).enhance(random.uniform(0.7, 1.3))
    return part


def normalize(channels: int) -> nn.Module:
    """Return a normalization that depends on no other image, so micro-batches may have any size."""
    return nn.GroupNorm(4, channels)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            *(normalize(outputs), nn.ReLU()),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            normalize(outputs),
        )
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut.extend([convolution, normalize(outputs)])

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, side, side) to (batch, outputs, side / stride, side / stride)."""
        added: Tensor = self.path(x) + self.shortcut(x)
        return added.relu()


def resnet(width: int) -> nn.Module:
    """Return a ResNet of eight layers, which maps (batch, 3, PIXELS, PIXELS) to ten logits."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False),
        *(normalize(width), nn.ReLU()),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        *(nn.MaxPool2d(2), nn.Flatten()),
        nn.Linear(4 * width * (PIXELS // 16) ** 2, 10),
    )


def task(width: int = 16, files: int = 2000, size: int = 512) -> surestep.Task:
    """Read the digit on a photo.

    Args:
        width: channels of the first convolution, a multiple of 4; the last ones have four times as
            many.
        files: JPEG files to train on.
        size: pixels of a file's side.
    """
    folder = make_files(files, size)
    return surestep.Task(
        model=lambda: resnet(width),
        loss=nn.CrossEntropyLoss(),
        train=Photos(folder / "train", augments=True),
        val=Photos(folder / "val", augments=False),
        test=Photos(folder / "test", augments=False),
        metrics={"accuracy": accuracy},
    )
