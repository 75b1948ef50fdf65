"""Exits with 0 when the Orion of this container answers `GET /healthz` with 200 within 3 s, else with 1.

The standard library alone: it runs every four seconds, beside the service or worker.
"""

import http.client
import os
import sys

TIMEOUT_S = 3.0
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what the service may be bound to


def is_healthy(host: str, port: int) -> bool:
    """Returns whether it lives. What it stands on is `/readyz`: to restart Orion would not mend Slack or the database."""
    connection = http.client.HTTPConnection(_ANY_ADDRESS.get(host, host), port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(not is_healthy(os.environ["ORION_HOST"], int(os.environ["ORION_PORT"])))
