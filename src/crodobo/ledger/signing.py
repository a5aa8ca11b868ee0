"""Ed25519 keys that sign a ledger's lines. They need the package `cryptography`: pip install "crodobo[sign]"."""

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from crodobo.errors import BadSettings, CrodoboError

RAW = 32  # bytes of a raw key, private or public


class SigningKey:
    """A private key; `public` is the raw public one in hexadecimal digits, as a ledger's header has it."""

    def __init__(self, sign: Callable[[bytes], bytes], public: str) -> None:
        self.sign, self.public = sign, public

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public!r})"


def load_signing_key(path: Path) -> SigningKey:
    """A private key from a file: PEM without a password, or the raw 32 bytes."""
    ed25519, serialization = _library()
    content = _read(path, "--sign-key")
    try:
        if len(content) == RAW:
            key = ed25519.Ed25519PrivateKey.from_private_bytes(content)
        else:
            key = serialization.load_pem_private_key(content, password=None)
    except Exception as error:  # the library raises several kinds for what is no key
        raise BadSettings(
            f"{path} holds no private key that can be read ({_first_line(error)}); --sign-key wants an Ed25519 key, "
            "PEM without a password or 32 raw bytes: crodobo audit keygen makes one"
        ) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise BadSettings(f"{path} holds a key of another kind than Ed25519; crodobo audit keygen makes one")
    return SigningKey(key.sign, key.public_key().public_bytes_raw().hex())


def load_public_key(path: Path) -> str:
    """A public key from a file, PEM or the raw 32 bytes, in hexadecimal digits."""
    ed25519, serialization = _library()
    content = _read(path, "--public-key")
    if len(content) == RAW:
        return content.hex()
    try:
        key = serialization.load_pem_public_key(content)
    except Exception as error:
        raise BadSettings(
            f"{path} holds no public key that can be read ({_first_line(error)}); --public-key wants an Ed25519 key, "
            "PEM or 32 raw bytes"
        ) from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise BadSettings(f"{path} holds a key of another kind than Ed25519")
    return str(key.public_bytes_raw().hex())


def make_verifier(public: str) -> Callable[[bytes, str], bool]:
    """Whether a signature, in hexadecimal digits, is that key's of those bytes."""
    ed25519, _ = _library()
    from cryptography.exceptions import InvalidSignature

    key = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))

    def verify(content: bytes, signature: str) -> bool:
        try:
            key.verify(bytes.fromhex(signature), content)
        except InvalidSignature:
            return False
        return True

    return verify


def can_sign() -> bool:
    """Whether the package for signatures is there."""
    try:
        _library()
    except CrodoboError:
        return False
    return True


def make_key_pair(path: Path) -> Path:
    """Write a new private key, readable by its owner alone, and beside it the public one; where that is."""
    ed25519, serialization = _library()
    public = path.with_name(f"{path.name}.pub")
    key = ed25519.Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    private_bytes = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public_bytes = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    for place in (path, public):
        if os.path.lexists(place):
            raise CrodoboError(f"{place} is there already and is not replaced; name another file")
    for place, content, mode in ((path, private_bytes, 0o600), (public, public_bytes, 0o644)):
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            raise CrodoboError(f"{place} cannot be written ({error.strerror}); name another file") from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    return public


def _library() -> tuple[ModuleType, ModuleType]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise CrodoboError('signatures need the package cryptography; pip install "crodobo[sign]"') from None
    return ed25519, serialization


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadSettings(f"the key {path} cannot be read ({error.strerror}); check {option}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
