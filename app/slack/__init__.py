"""Everything that is Slack's: requests in, messages out. Nobody else speaks Slack.

In: `listeners` (over HTTP, or by a socket) checks what arrives (`signature`), parses it (`payloads`, `actions`,
`key_modal`) and hands it to the core's intake. Out: `replies` tells threads over the Web API (`api`, which keeps to Slack's
limits), rendering by `blocks` and `markdown`; `live` and `streams` show progress, `status` Slack's own signs of work;
`history` reads threads back. `connection` opens all of it for one workspace.

Others import the modules of `__all__` alone.
"""

__all__ = [
    "api",
    "blocks",
    "connection",
    "key_modal",
    "listeners",
    "manifest",
    "streams",
]
