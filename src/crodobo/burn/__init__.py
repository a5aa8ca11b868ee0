"""What becomes of a query after it was read: its memory, the process around it, and the ledger of receipts."""

from crodobo.burn.hardening import Hardening, harden
from crodobo.burn.launch import relaunch

__all__ = ["Hardening", "harden", "relaunch"]
