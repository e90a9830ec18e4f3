"""PNG files have the pixels that they were written from."""

import io

import numpy as np
import pytest
from PIL import Image

from surestep.base.png import encode_png


@pytest.mark.parametrize(
    ("height", "width", "channels"), [(5, 7, 3), (7, 5, 1), (1, 1, 3), (2, 3, 4)]
)
def test_written_pixels_are_read_back(height, width, channels):
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
    with Image.open(io.BytesIO(encode_png(pixels.tobytes(), height, width, channels))) as found:
        assert found.mode == {1: "L", 3: "RGB", 4: "RGBA"}[channels]
        assert np.array_equal(np.asarray(found).reshape(pixels.shape), pixels)
