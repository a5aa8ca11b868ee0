"""The service: a private stream over HTTP, adapted to, answered, burned."""
