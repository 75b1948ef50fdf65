"""Everything that is Slack's: requests in, messages out. Nobody else speaks Slack.

In: `listeners` (over HTTP, or by a socket: `socket_mode`) checks what arrives (`signature`), parses it (`payloads`, `actions`,
`key_modal`) and hands it to the core's intake (`message_events`); what nobody heard is found (`catch_up`, by `unheard`) where
`hearing` says that it may be. Out: `replies` tells threads over the Web API (`api`, which keeps to Slack's
limits), rendering by `blocks` and `markdown`; `live` shows progress, and Slack's own "working" state;
`history` reads threads back. `connection` opens all of it for one workspace.

Others import the modules of `__all__` alone.
"""

__all__ = [
    "api",
    "blocks",
    "catch_up",
    "connection",
    "key_modal",
    "listeners",
    "manifest",
]
