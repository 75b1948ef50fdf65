"""What a sandbox may reach, in the provider's words."""

from urllib.parse import urlsplit

from vercel.sandbox import NetworkPolicy, NetworkPolicyRule, NetworkPolicyTransform

from sandbox_runtime.errors import SandboxError, SandboxErrorCode
from sandbox_runtime.types import BrokeredNetwork, ClosedNetwork, Network, OpenNetwork


def network_policy(network: Network) -> NetworkPolicy:
    """Raises: SandboxError: UNSUPPORTED when the endpoint is no URL: nothing of this machine is in reach from there."""
    match network:
        case ClosedNetwork():
            return NetworkPolicy.deny_all()
        case OpenNetwork():
            return NetworkPolicy.allow_all()
        case BrokeredNetwork():
            transforms = []
            if network.headers:
                transform = NetworkPolicyTransform(headers=network.headers)
                transforms.append(NetworkPolicyRule(transform=[transform]))
            return NetworkPolicy.custom({_host(network.endpoint): transforms})


def _host(endpoint: str) -> str:
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise SandboxError(
            SandboxErrorCode.UNSUPPORTED,
            "a sandbox at Vercel reaches a broker by a URL, not by a socket: set ORION_PUBLIC_URL",
        )
    return url.hostname
