"""The other side of `crodobo serve`: a client, and whole folders sent with it."""

from crodobo.client.client import Client
from crodobo.client.forms import Answer

__all__ = ["Answer", "Client"]
