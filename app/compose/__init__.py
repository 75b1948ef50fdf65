"""Joins the adapters to the core from the operator's settings."""

__all__ = [
    "accounts",
    "adapters",
    "brokers",
    "budgets",
    "core",
    "egress",
    "factories",
    "maintenance",
    "models",
    "permissions",
    "policy",
    "providers",
]
