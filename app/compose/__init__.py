"""Joins the adapters to the core from the operator's settings."""

__all__ = [
    "adapters",
    "brokers",
    "budgets",
    "core",
    "factories",
    "maintenance",
    "models",
    "providers",
]
