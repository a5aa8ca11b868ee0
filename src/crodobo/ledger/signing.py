"""Ed25519 keys that sign a ledger's entries. They need the package `cryptography`: pip install "crodobo[sign]"."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from crodobo.errors import BadSettings, CrodoboError

RAW = 32  # bytes of a raw key, private or public
Parse = Callable[[bytes], Any]


@dataclass
class SigningKey:
    """A private key. `public` is the raw public key in hexadecimal digits, as in a ledger's header."""

    sign: Callable[[bytes], bytes] = field(repr=False)
    public: str


def load_signing_key(path: Path) -> SigningKey:
    """Read a private key: PEM without a password, or 32 raw bytes."""
    ed25519, serialization = _library()
    kind, parse_pem = ed25519.Ed25519PrivateKey, partial(serialization.load_pem_private_key, password=None)
    key = _load(path, kind, kind.from_private_bytes, parse_pem, "private", "sign_key")
    return SigningKey(key.sign, key.public_key().public_bytes_raw().hex())


def load_public_key(path: Path) -> str:
    """Read a public key, PEM or 32 raw bytes. Returns it in hexadecimal digits."""
    ed25519, serialization = _library()
    kind = ed25519.Ed25519PublicKey
    key = _load(path, kind, kind.from_public_bytes, serialization.load_pem_public_key, "public", "public_key")
    return str(key.public_bytes_raw().hex())


def make_signature_check(public: str) -> Callable[[bytes, str], bool]:
    """A function that checks whether a signature, in hexadecimal digits, was made of some bytes with this key."""
    ed25519, _ = _library()
    from cryptography.exceptions import InvalidSignature

    key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))

    def is_valid(content: bytes, signature: str) -> bool:
        try:
            key.verify(bytes.fromhex(signature), content)
        except InvalidSignature:
            return False
        return True

    return is_valid


def can_sign() -> bool:
    """Whether the package for signatures is installed."""
    try:
        _library()
    except CrodoboError:
        return False
    return True


def make_key_pair(path: Path) -> Path:
    """Write a new private key, readable by its owner alone, and the public key beside it. Returns the latter's path."""
    ed25519, serialization = _library()
    public = path.with_name(f"{path.name}.pub")
    key = ed25519.Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    private_bytes = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public_bytes = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    for file in (path, public):
        if os.path.lexists(file):
            raise CrodoboError(f"{file} exists already and is not replaced.", "Choose another name.")
    for file, content, mode in ((path, private_bytes, 0o600), (public, public_bytes, 0o644)):
        try:
            with open(file, "xb", opener=partial(os.open, mode=mode)) as opened:
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
        except OSError as error:
            raise CrodoboError(f"{file} is not writable ({error.strerror}).", "Choose another name.") from None
    return public


def _library() -> tuple[ModuleType, ModuleType]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise CrodoboError(
            "Signatures need the package cryptography.", 'Install it with pip install "crodobo[sign]".'
        ) from None
    return ed25519, serialization


def _load(path: Path, kind: type, parse_raw: Parse, parse_pem: Parse, name: str, setting: str) -> Any:
    remedy = f"Use an Ed25519 {name} key: PEM without a password, or 32 raw bytes."
    try:
        content = path.read_bytes()
        key = parse_raw(content) if len(content) == RAW else parse_pem(content)
    except OSError as error:
        problem, remedy = f"The key {path} is not readable ({error.strerror}).", "Check the path."
    except Exception as error:  # cryptography raises several kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        problem = f"{path} is not a valid {name} key ({reason})."
    else:
        if isinstance(key, kind):
            return key
        problem = f"{path} holds a key of another kind than Ed25519."
    raise BadSettings(problem, remedy, settings=(setting,))
