"""`orion serve`, which looks for work four times a second, not ten times: many of them wait beside each other while tests run."""

import sys

from app.cli.commands.serve import serve
from app.cli.output import read_settings
from app.compose.adapters import Overrides

POLL_INTERVAL_S = 0.25

if __name__ == "__main__":
    overrides = Overrides(poll_interval_s=POLL_INTERVAL_S)
    sys.exit(serve(read_settings(for_serving=True), overrides=overrides))
