"""Overwriting the stack. Vector code of some decoders leaves the last pixels of a row there."""

import ctypes

SIZE = 2**17  # bytes of the stack that are overwritten; a decoder uses much less


class _Zeros(ctypes.Structure):
    """An argument that is passed by value, which means on the stack."""

    _fields_ = (("content", ctypes.c_char * SIZE),)


_ZEROS = _Zeros()
_abs = ctypes.CDLL(None).abs
_abs.argtypes = [_Zeros]


def overwrite_stack() -> None:
    """Overwrite what functions that have returned left on this thread's stack."""
    _abs(_ZEROS)
