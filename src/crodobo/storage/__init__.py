"""Files that are replaced in one step, locks, and tensors with a header."""
