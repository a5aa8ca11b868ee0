"""Audits of what runs leave behind: each says what it checked, what it found, and what it cannot see."""
