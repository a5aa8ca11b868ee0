"""The input and output of a method."""
