"""What operators see of a deployment: records and figures for the command line and for the page at `/ops`."""

__all__ = [
    "desk",
    "door",
    "pages",
    "records",
]
