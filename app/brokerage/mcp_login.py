"""How a person links an account at an MCP server: by what its authorization server knows, a code to type in or an address to bring back."""

from app.accounts.links import Waiting
from app.accounts.records import Account, LinkCode, TokenPair, mcp_service
from app.brokerage.code_flow import CodeFlow
from app.brokerage.device_flow import DeviceFlow


class McpLogin:
    """Implements Login, for one server."""

    def __init__(self, flow: DeviceFlow | CodeFlow) -> None:
        """`flow`: of a client whose title is the server's name in the operator's file."""
        title = flow.client.title
        self.service = mcp_service(title)
        self.title = title
        self.promise = f"what I do at {title} for you is done as you"
        self.returns_to = flow.redirect_url if isinstance(flow, CodeFlow) else ""
        self.begin = flow.begin
        self.refresh = flow.refresh
        self._flow = flow

    async def ask(self, code: LinkCode, brought: str) -> TokenPair | Waiting:
        """Implements Login."""
        return await self._flow.ask(code, brought)

    async def account_of(self, tokens: TokenPair) -> Account:
        """Returns an account without a name: the protocol has none to ask for."""
        return Account(service=self.service, id="", login="", tokens=tokens)
