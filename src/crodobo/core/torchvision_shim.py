"""Lets torchvision be imported beside a CPU-only torch.

The registry's torchvision is compiled against CUDA; beside a CPU build of torch its compiled operators
do not load, and the import fails because two of them are looked up by name. Declaring the two schemas is
enough for transforms and classification networks, which never call them. Import this module before
torchvision or timm; where torchvision is whole, it does nothing.
"""

import torch

_MISSING = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _declare_missing_operators() -> torch.library.Library | None:
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")
        for schema in _MISSING:
            library.define(schema)
        return library
    return None


LIBRARY = _declare_missing_operators()  # kept alive: the schemas are withdrawn with the object
