"""A client of the service, and a way to send whole folders with it."""

from crodobo.client.client import Client
from crodobo.client.forms import Answer

__all__ = ["Answer", "Client"]
