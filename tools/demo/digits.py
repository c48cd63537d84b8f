"""The demo's data and models: the held-out images and the trained models.

scikit-learn's handwritten digits (1,797 images of 8x8 pixels, 10 classes; Alpaydin and Kaynak,
1998). Training and demo share the split: one permutation of a fixed seed, the last `HELD_OUT`
images are never trained on.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode, install

SPLIT_SEED = 20
HELD_OUT = 360
CLASSES = 10
_FOLDER = Path(__file__).parent / "models"
MODELS = {"mlp": _FOLDER / "digits_mlp.onnx", "cnn": _FOLDER / "digits_cnn.onnx"}


@dataclass(frozen=True)
class DigitImages:
    """Grey values 0..1 as f32 [n, 1, 8, 8], and the digit of each image as i64 [n]."""

    pixels: np.ndarray
    labels: np.ndarray

    def accuracy(self, scores: np.ndarray) -> float:
        """Return the share of images whose highest score [n, 10] is their digit's."""
        return float(np.mean(np.argmax(scores, axis=1) == self.labels))


def load_digits() -> tuple[DigitImages, DigitImages]:
    """Return the images to train on (1,437) and those held out (360).

    Raises PycError (MISSING_DEPENDENCY) without scikit-learn.
    """
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            f"digits: expected scikit-learn; {install('demo')}",
        ) from error
    data, target = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(data))
    pixels = (data[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = target[order].astype(np.int64)
    held_out = DigitImages(pixels[-HELD_OUT:], labels[-HELD_OUT:])
    return DigitImages(pixels[:-HELD_OUT], labels[:-HELD_OUT]), held_out
