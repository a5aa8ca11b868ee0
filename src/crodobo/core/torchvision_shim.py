"""Makes it possible to import torchvision with a CPU-only torch.

The torchvision of the package registry is compiled against CUDA. With a CPU build of torch its compiled operators do
not load, and the import fails because it looks two of them up by name. Declaring the two schemas is enough for
transforms and classification networks, which never call them. Import this module before torchvision or timm. It does
nothing if torchvision works.
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


LIBRARY = _declare_missing_operators()  # keep a reference: the schemas disappear with the object
