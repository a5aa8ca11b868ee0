"""Files that are written whole or not at all, locks, and tensors with a header."""
