"""The model, git and MCP broker: what a sandbox asks for goes out through it, with keys that the sandbox never sees."""

__all__ = [
    "broker",
    "code_flow",
    "credentials",
    "device_flow",
    "endpoints",
    "git",
    "github",
    "github_app",
    "github_login",
    "github_pulls",
    "http",
    "judge",
    "mcp",
    "mcp_login",
    "oauth",
    "registry",
    "sharing",
]
