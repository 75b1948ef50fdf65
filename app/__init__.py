"""The service: what hears Slack, hands runs out, and tells the answer."""

__version__ = "0.1.0"
"""As `pyproject.toml` has it: a deployment to Vercel has the tree, and no installed package to ask."""
