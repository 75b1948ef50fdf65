"""Which hosts sandboxes may reach, and whether it is so."""

from collections.abc import Iterable, Iterator, Sequence

from agent_scripts.reaching import HostTry
from app.cli.commands.shell import quieten
from app.cli.commands.terminal import Print
from app.compose.egress import learn_host_sets, try_hosts
from app.compose.providers import choose_provider, create_provider
from app.egress.hosts import HostEntry, HostSet
from app.egress.tally import NOT_PUBLIC
from app.settings.settings import Settings

NOT_KEPT_FIX = "Where that counts, use local or Docker sandboxes, or list no hosts."


async def check_hosts(settings: Settings, *, write: Print) -> bool:
    """Prints the lists, and what a new sandbox reaches of them; returns whether it reaches nothing else.

    Raises:
        SettingsError: a provider that is set up cannot keep to the lists.
        SandboxError: there is no sandbox to try it from.
    """
    quieten(settings)
    settings = await learn_host_sets(settings)
    for line in describe_lists(settings):
        write(line)
    async with create_provider(settings, await choose_provider(settings)) as provider:
        listed = listed_hosts(settings)
        await provider.ensure_ready()
        canaries, tried = await try_hosts(settings, provider, listed)
        write(f"From a sandbox of {provider.name}:")
        for one in tried:
            write(f"  {describe_try(one)}")
        for one in canaries:
            write(f"  {describe_try(one)} (on no list)")
        if untried := describe_untried(listed):
            write(f"  {untried}")
    for one in tried:
        if NOT_PUBLIC in one.by_proxy:
            write(f"! {one.host} is of a network of your own: list it as private:{one.host}")
    if failed := sum(not one.is_reached for one in tried):
        were = "was" if failed == 1 else "were"
        write(f"! Of {count_hosts(len(tried))} on the lists {failed} {were} not reached.")
    is_kept = not any(one.is_reached for one in canaries)
    if not is_kept:
        write(f"! A host that is on no list is reached. {NOT_KEPT_FIX}")
    return is_kept


def listed_hosts(settings: Settings) -> Sequence[HostEntry]:
    """Returns the hosts of all lists together."""
    entries = (entry for items in settings.host_lists for entry in settings.entries(items))
    return list(dict.fromkeys(entries))


def count_hosts(number: int) -> str:
    """Returns `1 host`, `2 hosts`."""
    return f"{number} host{'' if number == 1 else 's'}"


def describe_untried(entries: Iterable[HostEntry]) -> str:
    """Returns which entries nobody tries; empty = none."""
    stars = ", ".join(str(one) for one in entries if one.is_wildcard)
    return f"not tried, as a star names no host: {stars}" if stars else ""


def describe_lists(settings: Settings) -> Iterator[str]:
    """Yields a line for each entry, below the list that it is of."""
    toml = settings.toml
    lists = {
        "ORION_EGRESS_HOSTS": settings.sandbox.egress_hosts,
        **{f"channel {name}": items for name, items in toml.channel_hosts.items()},
        **{f"repository {name}": items for name, items in toml.repository_hosts.items()},
    }
    for name, items in lists.items():
        yield f"{name}:{'' if items else ' none'}"
        for item in items:
            hosts = (
                ", ".join(map(str, settings.entries([item]))) or "unknown: its tool does not answer"
            )
            yield f"  {item}{f' = {hosts}' if isinstance(item, HostSet) else ''}"


def describe_try(one: HostTry) -> str:
    """Returns what became of one host."""
    named, _, address = one.host.partition("@")
    if address:
        return f"{address}, by {named} in TLS: {one.direct}"
    if not one.by_proxy:
        return f"{one.host} {one.direct}"
    past = "" if one.direct.startswith("failed") else f"; past the proxy: {one.direct}"
    return f"{one.host} {one.by_proxy}{past}"
