"""Erasing queries from memory: the memory they are held in, the hardened process, and the proof."""
