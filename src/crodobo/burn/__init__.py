"""Erasing queries from memory: where they lie, the hardened process around them, and the proof."""
