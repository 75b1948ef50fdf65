"""`orion serve` with a tripwire around every port: `python -m tests.crash.server MAILBOX [--agent KIND]`."""

import argparse
import sys
from pathlib import Path

from app.cli.commands.serve import serve
from app.compose.adapters import Overrides
from app.settings.settings import load_settings
from tests.bench.instant import InstantAdapter, InstantProvider
from tests.crash.agent import SmallAdapter
from tests.crash.points import Mailbox, Tripwire, WatchAll


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.server")
    parser.add_argument("mailbox", type=Path)
    parser.add_argument(
        "--agent",
        choices=["anthropic", "small", "instant"],
        default="anthropic",
        help="the real one; a small one in a real sandbox; one that answers at once without any",
    )
    given = parser.parse_args()
    wrap = WatchAll(Tripwire(Mailbox(given.mailbox)))
    match given.agent:
        case "instant":
            provider = InstantProvider(holds=False)
            overrides = Overrides(provider=provider, adapter=InstantAdapter(), wrap=wrap)
        case "small":
            overrides = Overrides(adapter=SmallAdapter(), wrap=wrap)
        case _:
            overrides = Overrides(wrap=wrap)
    return serve(load_settings(env_file=None), overrides=overrides)


if __name__ == "__main__":
    sys.exit(main())
