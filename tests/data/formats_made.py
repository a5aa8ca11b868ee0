"""Files of formats that need extra packages, made by the tests themselves."""

import io
from typing import Any

import numpy as np
from PIL import Image

NAME, NUMBER = "DOE^SECRET^JANE", "PATIENT-4711-0815"


def heic(pixels: np.ndarray) -> bytes:
    import pillow_heif

    pillow_heif.register_heif_opener()
    return encoded(pixels, "HEIF", quality=-1)


def encoded(pixels: np.ndarray, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def dicom(pixels: np.ndarray, syntax: str = "1.2.840.10008.1.2.1", **elements: Any) -> bytes:
    """A DICOM file with a patient's name and number. `pixels` are frames × rows × columns, or fewer axes."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import UID

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = UID(syntax)
    meta.MediaStorageSOPClassUID = UID("1.2.840.10008.5.1.4.1.1.2")
    meta.MediaStorageSOPInstanceUID = UID("1.2.826.0.1.3680043.8.498.1")
    file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    bits, colour = 8 * pixels.dtype.itemsize, pixels.ndim == 3 and pixels.shape[-1] == 3
    file.PatientName, file.PatientID = NAME, NUMBER
    file.Rows, file.Columns = pixels.shape[:2] if colour else pixels.shape[-2:]
    file.SamplesPerPixel, file.PhotometricInterpretation = (3, "RGB") if colour else (1, "MONOCHROME2")
    file.BitsAllocated = file.BitsStored = bits
    file.HighBit, file.PixelRepresentation = bits - 1, int(pixels.dtype.kind == "i")
    if colour:
        file.PlanarConfiguration = 0
    elif pixels.ndim == 3:
        file.NumberOfFrames = len(pixels)
    file.PixelData = pixels.tobytes()
    for name, value in elements.items():
        setattr(file, name, value)
    written = io.BytesIO()
    file.save_as(written, enforce_file_format=True)
    return written.getvalue()
