"""Audits of what runs leave behind: each says what it checked, what it found, and what it cannot see."""

from crodobo.audit.ledger import audit_ledger
from crodobo.audit.report import Report

__all__ = ["Report", "audit_ledger"]
