"""A fake Slack: one workspace in memory, its Web API, its events, its limits, and its failures on request."""
