"""Protects the learners from harmful streams."""
