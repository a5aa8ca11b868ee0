"""A strict process with a decoder that keeps pixels, which its proof must find. Run by test_decoding.py."""

import sys

from crodobo.burn.relaunch import relaunch

if __name__ == "__main__":
    relaunch()

import numpy as np
import torch
from PIL import Image

from crodobo import CroDoBo, Source
from crodobo.burn.levels import memory_for
from crodobo.burn.proof import prove
from crodobo.data import decode
from crodobo.errors import Residue


def scale_in_numpy(image: Image.Image) -> Image.Image:
    """numpy caches the result, if it has less than 1,024 bytes, when it is freed."""
    values = np.asarray(image).astype(np.float64)
    return Image.fromarray(np.round(values * (255 / values.max())).astype(np.uint8))


def main() -> None:
    if sys.argv[1] == "numpy":
        decode._scaled = scale_in_numpy
    elif sys.argv[1] == "Pillow":
        Image.core.set_blocks_max(64)
    method = CroDoBo(Source(torch.rand(16, 3, 16, 16), [0, 1] * 8), learners=1, warmup=1, warmup_batch=4, threads=1)
    try:
        prove(method, memory_for("strict"), 8)
        print("nothing")
    except Residue as error:
        print(error)


if __name__ == "__main__":
    main()
