"""HTTP around the service: health, metrics, hosting."""

__all__ = [
    "assets",
    "health",
    "hosting",
    "invocations",
    "linked",
    "routes",
]
