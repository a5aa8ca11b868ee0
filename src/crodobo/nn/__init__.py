"""Networks and how they learn."""
