"""The page on which people use the fake Slack: its files, its HTTP interface, and what open pages are told."""
