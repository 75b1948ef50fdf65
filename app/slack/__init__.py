"""Everything that is Slack's: requests in, messages out. Nobody else speaks Slack.

In: `transport` (HTTP) and `socket_mode` check what arrives (`signature`); `listeners` parse it (`payloads`, `actions`), and hand it
to the core's intake (`message_events`) or to a surface of its own: modals (`key_modal`, `modals`, `ask_modal`), `/orion` (`commands`), the home tab
(`home`), both from one `overview`. What nobody heard is found (`catch_up`, by `unheard`) where `hearing` says that it may be. `manifest` names what
an app needs for each. Out: `replies` tells threads over the Web API
(`api`, which keeps to Slack's limits), rendering by `blocks` and `markdown`; `live` and `streams` show progress, `status` Slack's own signs of work;
`history` reads threads back. `connection` opens all of it for one workspace.

Others import the modules of `__all__` alone.
"""

__all__ = [
    "api",
    "blocks",
    "catch_up",
    "connection",
    "home",
    "key_modal",
    "manifest",
    "overview",
    "streams",
    "transport",
]
