"""Where browsers end that come from the login of an MCP server: shows the person what to bring back to Slack, and keeps nothing."""

import html
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse

LINKED: Final = "/linked"
"""Behind it is the server's name."""
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
}
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Orion</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
main {{ max-width: 40rem; margin: 15vh auto; padding: 0 1rem }}
code {{ display: block; padding: 1rem; border: 1px solid; border-radius: .5rem; overflow-wrap: anywhere; user-select: all }}
</style>
<main>
<h1>One more step</h1>
<p>If you have come here from a link that Orion gave you in Slack, write this there:</p>
<code>{command}</code>
<p>Otherwise close this page: nothing is linked yet.</p>
</main>
</html>
"""


def linked_page(request: Request) -> HTMLResponse:
    """Returns the page, whatever the service has put into its address: that is for whoever is brought it."""
    name = request.url.path.rpartition("/")[2]
    command = f"/orion link {name} {request.url}"
    return HTMLResponse(_PAGE.format(command=html.escape(command)), headers=_HEADERS)
