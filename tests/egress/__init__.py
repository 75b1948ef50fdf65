"""Ways around the list of hosts that a sandbox may reach, and the few that lead through."""
