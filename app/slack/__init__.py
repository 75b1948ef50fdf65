"""Everything that is Slack's: requests in, messages out. Nobody else speaks Slack.

In: `transport` (HTTP, or a socket) checks what arrives (`signature`); `listeners` parse it (`payloads`, `actions`), and hand it
to the core's intake or to a surface of its own: modals (`key_modal`, `modals`, `ask_modal`), `/orion` (`commands`), the home tab
(`home`), both from one `overview`. `manifest` names what an app needs for each. Out: `replies` tells threads over the Web API
(`api`, which keeps to Slack's limits), rendering by `blocks` and `markdown`; `live` and `streams` show progress, `status` Slack's own signs of work;
`history` reads threads back. `connection` opens all of it for one workspace.

Others import the modules of `__all__` alone.
"""

__all__ = [
    "api",
    "blocks",
    "connection",
    "home",
    "key_modal",
    "manifest",
    "overview",
    "streams",
    "transport",
]
