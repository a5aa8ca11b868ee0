"""Protocols, runs, comparisons and reports."""
