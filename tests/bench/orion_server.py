"""`orion serve` with an agent and a sandbox that cost nothing.

Run as `python -m tests.bench.orion_server [--hold | --work-s S [--writes]] [--no-work]`; settings come from the environment. With `--hold` no agent ever
answers, so that with one place for runs nothing runs after the placing.
"""

import argparse
import sys

from app.cli.commands.serve import serve
from app.compose.adapters import Overrides, Role
from app.settings.settings import load_settings
from tests.bench.instant import InstantAdapter, InstantProvider


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--work-s", type=float, default=0, help="how long an agent works")
    parser.add_argument("--writes", action="store_true", help="meanwhile, a few words at a time")
    parser.add_argument("--no-work", action="store_true")
    given = parser.parse_args()
    provider = InstantProvider(holds=given.hold, work_s=given.work_s, writes=given.writes)
    overrides = Overrides(provider=provider, adapter=InstantAdapter())
    role = Role.FRONT if given.no_work else Role.WHOLE
    return serve(load_settings(env_file=None), role=role, overrides=overrides)


if __name__ == "__main__":
    sys.exit(main())
