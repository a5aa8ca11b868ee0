"""Burning: what is left of a query is a receipt."""
