"""`orion serve` with an agent and a sandbox that cost nothing.

Run as `python -m tests.bench.orion_server [--hold]`; settings come from the environment. With `--hold` no agent ever
answers, so that with one place for runs nothing runs after the placing.
"""

import argparse
import sys

from app.commands.serve import serve
from app.config import load_settings
from app.main import Overrides
from tests.bench.instant import InstantAdapter, InstantProvider


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hold", action="store_true")
    holds = parser.parse_args().hold
    overrides = Overrides(provider=InstantProvider(holds=holds), adapter=InstantAdapter())
    return serve(load_settings(env_file=None), overrides=overrides)


if __name__ == "__main__":
    sys.exit(main())
