"""How a person links an account at an MCP server: by the device flow of its authorization server."""

from app.accounts.links import DeviceCode, Waiting
from app.accounts.records import Account, TokenPair, mcp_service
from app.brokerage.device_flow import DeviceClient, DeviceFlow


class McpLogin:
    """Implements Login, for one server."""

    def __init__(self, client: DeviceClient) -> None:
        """`client`: its title is the server's name in the operator's file."""
        self.service = mcp_service(client.title)
        self.title = client.title
        self.promise = f"what I do at {client.title} for you is done as you"
        self._flow = DeviceFlow(client)

    async def begin(self) -> DeviceCode:
        return await self._flow.begin()

    async def ask(self, code: DeviceCode) -> TokenPair | Waiting:
        return await self._flow.ask(code)

    async def refresh(self, tokens: TokenPair) -> TokenPair:
        return await self._flow.refresh(tokens)

    async def account_of(self, tokens: TokenPair) -> Account:
        """Returns an account without a name: the protocol has none to ask for."""
        return Account(service=self.service, id="", login="", tokens=tokens)
