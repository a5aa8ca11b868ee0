"""The loop that every stream goes through."""
