"""Who may do what with Orion, by people, groups and channels."""

__all__ = [
    "rules",
]
