"""HTTP around the service: health, metrics, hosting."""

__all__ = [
    "health",
    "hosting",
    "invocations",
    "routes",
]
