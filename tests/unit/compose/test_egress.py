"""Lists of hosts from the operator's words to what a run gets; and what cannot be as they say."""

from pathlib import Path

import pytest

from app.compose.egress import find_host_problems, learn_host_sets
from app.compose.policy import host_lists
from app.egress.hosts import HostEntry, HostSet
from app.settings.group import SettingsError
from app.settings.settings import Settings, load_settings

FILE = """
[channels.C0123456789]
egress_hosts = ["docs.example.com"]

[repositories."Acme/API"]
egress_hosts = ["*.example.org", "private:mirror.example.com:8443"]
"""
VERCEL = {"vercel_token": "t", "vercel_team_id": "team_1", "vercel_project_id": "prj_1"}


def settings_of(directory: Path, *, text: str = FILE, **given: str) -> Settings:
    file = directory / "orion.toml"
    file.write_text(text)
    return load_settings(
        env_file=None, given={"orion_egress_hosts": "api.example.com", **given}, toml=file
    )


def test_a_thread_gets_its_lists_together(tmp_path: Path) -> None:
    """Everyone's, its channel's and its repository's, in whatever spelling names that; each host once."""
    lists = host_lists(settings_of(tmp_path))
    everyone = [str(one) for one in lists.of("C9", "")]
    assert everyone == ["api.example.com"]
    assert [str(one) for one in lists.of("C0123456789", "")] == [*everyone, "docs.example.com"]
    of_repository = [*everyone, "*.example.org", "private:mirror.example.com:8443"]
    for spelling in ("acme/api", "https://github.com/acme/api.git"):
        assert [str(one) for one in lists.of("C9", spelling)] == of_repository
    assert lists.of("C9", "acme/other") == lists.of("C9", "")


async def test_a_set_whose_tool_is_not_asked_has_no_hosts(tmp_path: Path) -> None:
    """Until it is asked it allows nothing."""
    settings = settings_of(tmp_path, text="", orion_egress_hosts="@npm, private:@pip")
    assert host_lists(settings).everywhere == ()
    assert settings.sandbox.egress_hosts == (
        HostSet(name="npm"),
        HostSet(name="pip", is_private=True),
    )


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("", "10.0.0.1", "is an address"),
        ("", "*", "must name a host"),
        ("", "*.com", "allows too much"),
        ("", "@pipp", "there are @apt, @cargo, @go, @npm, @pip, @pnpm, @uv, @yarn"),
        (
            "",
            "https://api.example.com",
            "'https://api.example.com' is no entry; did you mean api.example.com?",
        ),
        ("[channels.C0123456789]\negress_hosts = ['a b']", "", "'a b' is not"),
        ("[channels.C0123456789]\negress_host = []", "", "egress_host"),
        ("[repositories.'a/b']\negress_hosts = 7", "", "must be a list of hosts"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, given: str, said: str) -> None:
    """Before anything runs: a list that does nothing would be found out too late."""
    with pytest.raises(SettingsError) as caught:
        settings_of(tmp_path, text=text, orion_egress_hosts=given)
    assert said in str(caught.value)


async def test_what_a_cloud_cannot_keep_refuses_the_start(tmp_path: Path) -> None:
    """Vercel's networks know no ports; without Vercel the same list is fine."""
    alone = settings_of(tmp_path)
    assert list(find_host_problems(alone)) == []
    assert await learn_host_sets(alone) == alone
    with pytest.raises(SettingsError) as caught:
        await learn_host_sets(settings_of(tmp_path, **VERCEL))
    (line,) = str(caught.value).splitlines()
    assert line.startswith("private:mirror.example.com:8443 cannot be on a list of hosts")
    assert "vercel" in line


def test_what_a_sandbox_is_told_of_an_entry() -> None:
    """Without the word for people's own networks, which is nothing for it to know."""
    entry = HostEntry(name="mirror.example.com", port=8443, is_private=True)
    assert entry.pattern == "mirror.example.com:8443"
