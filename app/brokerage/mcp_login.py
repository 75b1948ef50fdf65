"""How a person links an account at an MCP server: by the device flow of its authorization server."""

from app.accounts.records import Account, TokenPair, mcp_service
from app.brokerage.device_flow import DeviceClient, DeviceFlow


class McpLogin(DeviceFlow):
    """Implements Login, for one server."""

    def __init__(self, client: DeviceClient) -> None:
        """`client`: its title is the server's name in the operator's file."""
        self.service = mcp_service(client.title)
        self.title = client.title
        self.promise = f"what I do at {client.title} for you is done as you"
        super().__init__(client)

    async def account_of(self, tokens: TokenPair) -> Account:
        """Returns an account without a name: the protocol has none to ask for."""
        return Account(service=self.service, id="", login="", tokens=tokens)
