"""Receipts of erased queries: writing, verifying, signing."""
