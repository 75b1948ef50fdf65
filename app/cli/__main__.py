"""`python -m app.cli`, as `orion`."""

from app.cli import main

main()
