"""The model, git and MCP broker: what a sandbox asks for goes out through it, with keys that the sandbox never sees."""

__all__ = [
    "broker",
    "endpoints",
    "git",
    "github",
    "http",
    "judge",
    "mcp",
    "registry",
    "sharing",
]
