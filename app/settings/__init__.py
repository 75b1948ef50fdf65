"""What the operator says, in the environment, `.env`, `orion.toml` and the file of MCP servers: read and checked."""

__all__ = [
    "agents",
    "agreement",
    "group",
    "mcp",
    "orion_toml",
    "permissions",
    "sandboxes",
    "settings",
    "toml_lines",
]
