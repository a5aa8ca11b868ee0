"""Audits for third parties. Each reports what it checked, what it found, and what it cannot see."""
