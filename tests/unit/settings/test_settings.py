"""Settings: read, checked, documented."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent_scripts.cli_agent import RELAY, RUN_TOKEN
from app.compose.models import missing_for_serving
from app.settings.group import SettingsError, fields_of
from app.settings.settings import (
    all_fields,
    default_ca_bundle,
    groups,
    load_settings,
    make_private,
)
from tests.github_app import PRIVATE_KEY
from tests.settings_pages import PAGES


@pytest.mark.parametrize("path", PAGES)
def test_what_people_read_of_settings_is_written_from_their_fields(path: Path) -> None:
    """A setting is one field: after another one, `make settings`."""
    assert path.read_text() == PAGES[path]()


def test_every_setting_says_what_it_is_for() -> None:
    """And no two have one name."""
    fields = [info for group in groups().values() for info in fields_of(group).values()]
    assert all(info.alias and info.description for info in fields)
    names = [name for _, _, names in all_fields() for name in names]
    assert len(names) == len(set(names))


def test_all_bad_settings_are_named_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start-up tells every wrong setting at once, with its value but never a secret's."""
    monkeypatch.setenv("ORION_PORT", "99999")
    monkeypatch.setenv("ORION_SANDBOX", "mars")
    monkeypatch.setenv("SLACK_API_URL", "slack.com")
    monkeypatch.setenv("ORION_SYSTEM_PROMPT_FILE", "/no/such/file")
    with pytest.raises(SettingsError) as failure:
        load_settings(env_file=None)
    text = str(failure.value)
    for part in ("ORION_PORT", "99999", "ORION_SANDBOX", "mars", "SLACK_API_URL", "/no/such/file"):
        assert part in text


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://u:3141592653@h/db", "must start with postgresql:// (its scheme is mysql://…)"),
        ("sqlite:///3141592653", "its scheme is sqlite://…"),
        ("postgresql+psycopg://u:3141592653@h/d", "its scheme is postgresql+psycopg://…"),
        ("3141592653", "its scheme is none"),
        ("u:3141592653@h/d", "must start with postgresql://"),
        ("postgresql:///3141592653", "names no host"),
        ("postgresql://u:3141592653@h", "names no database"),
        ("postgresql://u:3141592653#x@h/d", "a port that is no number"),
        ("postgresql://u:3141592653 x@h/d", "has white space"),
    ],
)
def test_a_database_url_that_cannot_be_one_is_refused(
    url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is shown but its scheme: where the password begins is not known."""
    monkeypatch.setenv("ORION_DATABASE_URL", url)
    with pytest.raises(SettingsError) as refusal:
        load_settings(env_file=None)
    assert str(refusal.value).startswith("ORION_DATABASE_URL: ")
    assert words in str(refusal.value)
    assert "3141592653" not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgres://u:p@h/d",
        "postgresql://u:geheim%2D3141@h:6543/d?sslmode=require",
        "postgresql://u@/d?host=/run/postgresql",
    ],
)
def test_a_database_url_is_where_records_are(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is; whole and alone, its password is a secret. Another state directory is another database."""
    monkeypatch.setenv("ORION_DATABASE_URL", url)
    settings = load_settings(env_file=None)
    assert settings.database == url
    assert url in settings.secrets
    assert ("geheim-3141" in settings.secrets) is ("geheim" in url)
    assert settings.at(Path("/other")).database == Path("/other/orion.db")
    assert url not in repr(settings)


@pytest.mark.parametrize("days", ["1", "0", "-3", "1.9", "soon", "1000000"])
def test_runs_are_kept_for_two_days_at_least(days: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slack sends messages again for hours: a shorter time is a start-up error with the setting's name."""
    monkeypatch.setenv("ORION_RETENTION_DAYS", days)
    with pytest.raises(SettingsError, match="ORION_RETENTION_DAYS"):
        load_settings(env_file=None)


@pytest.mark.parametrize("place", ["environment", "file"])
def test_a_misspelt_setting_is_an_error(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt allow-list must not open the bot to everyone: it is named with the right word, beside other mistakes."""
    env_file = tmp_path / ".env"
    env_file.write_text("ORION_ALLOWED_USER=U1\n" if place == "file" else "")
    if place == "environment":
        monkeypatch.setenv("ORION_ALLOWED_USER", "U1")
    monkeypatch.setenv("ORION_PORT", "x")
    with pytest.raises(SettingsError) as failure:
        load_settings(env_file=env_file)
    assert "ORION_ALLOWED_USER: no such setting; did you mean ORION_ALLOWED_USERS?" in str(
        failure.value
    )
    assert "ORION_PORT" in str(failure.value)


def test_the_state_directory_is_closed(tmp_path: Path) -> None:
    """A new one is for its owner alone, and one that stood open is closed."""
    open_one = tmp_path / "open"
    open_one.mkdir(mode=0o755)
    for directory in (open_one, tmp_path / "new" / "deep"):
        make_private(directory)
        assert directory.stat().st_mode & 0o777 == 0o700


def test_wrong_tokens_are_named_without_their_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of the wrong kind is refused; its text is not repeated."""
    monkeypatch.setenv("SLACK_BOT_TOKEN", "sneaky-value-1234")
    with pytest.raises(SettingsError) as failure:
        load_settings(env_file=None)
    assert "SLACK_BOT_TOKEN" in str(failure.value)
    assert "sneaky" not in str(failure.value)


def test_langfuse_keys_come_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key without the other is a mistake, not a silent absence of traces."""
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-lf-x")
    with pytest.raises(SettingsError, match="LANGFUSE_SECRET_KEY"):
        load_settings(env_file=None)


def test_missing_for_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serving names all that it lacks; Socket Mode needs no signing secret."""
    assert len(missing_for_serving(load_settings(env_file=None))) == 3
    monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-1")
    monkeypatch.setenv("SLACK_APP_TOKEN", "xapp-1")
    monkeypatch.setenv("AI_GATEWAY_API_KEY", "vck_1")
    assert missing_for_serving(load_settings(env_file=None)) == ()


def test_lists_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists split at commas and blanks; every secret is known for masking and hidden in prints."""
    monkeypatch.setenv("ORION_ALLOWED_USERS", "U1, U2 U3")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    settings = load_settings(env_file=None)
    assert settings.access.allowed_users == {"U1", "U2", "U3"}
    assert settings.secrets == ("sk-ant-secret",)
    assert "sk-ant-secret" not in repr(settings)


@pytest.mark.parametrize(
    ("own", "general", "model"),
    [("opus", "other", "opus"), (None, "other", "other"), (None, None, None)],
)
def test_a_model_for_the_chosen_agent_comes_first(
    own: str | None, general: str | None, model: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One setting for all agents, and one for each that wins."""
    monkeypatch.setenv("ORION_AGENT", "claude")
    monkeypatch.setenv("ORION_MODEL_ANTHROPIC", "not-mine")
    monkeypatch.setenv("ORION_MODEL_CLAUDE", own or "")
    monkeypatch.setenv("ORION_MODEL", general or "")
    assert load_settings(env_file=None).model_of("claude") == model


def test_an_open_quote_in_the_agents_arguments_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are split as a shell would, at start-up and not in the first run."""
    monkeypatch.setenv("ORION_AGENT_ARGUMENTS", "--effort 'high")
    with pytest.raises(SettingsError, match="ORION_AGENT_ARGUMENTS"):
        load_settings(env_file=None)


def test_an_env_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """One sentence, no traceback."""
    path = tmp_path / ".env"
    path.write_bytes(b"A=\xff\n")
    with pytest.raises(SettingsError, match=r"\.env cannot be read"):
        load_settings(env_file=path)


def test_env_file_is_read_and_the_environment_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.env` gives values that the environment may replace."""
    env_file = tmp_path / ".env"
    env_file.write_text("ORION_PORT=4000\nORION_LOG_FORMAT=json\n")
    monkeypatch.setenv("ORION_PORT", "4001")
    settings = load_settings(env_file=env_file)
    assert (settings.service.port, settings.service.log_format) == (4001, "json")


def test_ca_bundle_of_the_environment(tmp_path: Path) -> None:
    """The first variable that names an existing file is the bundle."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x")
    environment = {"SSL_CERT_FILE": "/no/such", "PIP_CERT": str(bundle)}
    assert default_ca_bundle(environment) == bundle
    assert default_ca_bundle({}) is None


def test_a_mounted_directory_is_one_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the whole machine, not what holds the home or Orion's state, not what is missing: each refused in a sentence."""
    home, state, project = tmp_path / "people" / "me", tmp_path / "state", tmp_path / "project"
    for path in (home, state / "inside", project):
        path.mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("ORION_STATE_DIR", str(state))
    for refused, why in (
        ("/", "whole machine"),
        (home, "holds your home"),
        (tmp_path / "link", "holds your home"),
        (home.parent, "holds your home"),
        (state, "Orion's own state"),
        (state / "inside", "Orion's own state"),
        (tmp_path / "missing", "no directory"),
        (tmp_path / "file", "no directory"),
    ):
        monkeypatch.setenv("ORION_MOUNT_DIR", str(refused))
        with pytest.raises(SettingsError, match="ORION_MOUNT_DIR") as failure:
            load_settings(env_file=None)
        assert why in str(failure.value)
    monkeypatch.setenv("ORION_MOUNT_DIR", str(project))
    mount = load_settings(env_file=None).mount
    assert mount is not None
    assert str(project) in mount.sentence
    assert not mount.is_overlay
    monkeypatch.setenv("ORION_SANDBOX", "docker")
    with pytest.raises(SettingsError, match="ORION_MOUNT_OVERLAY=true"):
        load_settings(env_file=None)
    monkeypatch.setenv("ORION_MOUNT_OVERLAY", "true")
    assert "copy" in (load_settings(env_file=None).mount or mount).sentence
    monkeypatch.delenv("ORION_MOUNT_DIR")
    with pytest.raises(SettingsError, match="ORION_MOUNT_OVERLAY"):
        load_settings(env_file=None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ORION_SANDBOX": "vercel"}, "ORION_SANDBOX: vercel needs VERCEL_TOKEN"),
        ({"ORION_SANDBOX": "vercel", "VERCEL_TOKEN": "x"}, "VERCEL_PROJECT_ID"),
        ({"ORION_SANDBOX": "deno"}, "ORION_SANDBOX: deno needs DENO_DEPLOY_TOKEN"),
        (
            {"ORION_SANDBOX": "deno", "DENO_DEPLOY_TOKEN": "x", "ORION_SANDBOX_REGION": "iad1"},
            "ORION_SANDBOX_REGION: no region 'iad1' (deno: ams, ord)",
        ),
        (
            {"ORION_SANDBOX": "vercel", "VERCEL_OIDC_TOKEN": "x", "ORION_SANDBOX_REGION": "ams"},
            "ORION_SANDBOX_REGION: no region 'ams' (vercel: arn1, bom1, cdg1,",
        ),
        (
            {"ORION_SANDBOX": "deno", "DENO_DEPLOY_TOKEN": "x", "ORION_RUN_TIMEOUT_S": "1800"},
            "ORION_RUN_TIMEOUT_S: a deno sandbox lives for 30 minutes",
        ),
        (
            {"ORION_SANDBOX": "vercel", "VERCEL_OIDC_TOKEN": "x", "ORION_SANDBOX_REGION": "zzz9"},
            "ORION_SANDBOX_REGION: no region 'zzz9' (vercel: arn1,",
        ),
        ({"ORION_SANDBOX_REGION": "mars"}, "ORION_SANDBOX_REGION: no region 'mars'"),
        (
            {"ORION_SANDBOX": "vercel", "VERCEL_OIDC_TOKEN": "x", "ORION_SANDBOX_VCPUS": "1.5"},
            "ORION_SANDBOX_VCPUS: vercel has whole processors (is 1.5)",
        ),
        ({"ORION_PUBLIC_URL": "orion.example.com"}, "ORION_PUBLIC_URL"),
    ],
)
def test_a_cloud_that_cannot_be_used_so_is_told_at_the_start(
    settings: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing, and which regions and limits a cloud has."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as failure:
        load_settings(env_file=None)
    assert said in str(failure.value)


def test_a_short_secret_for_keys_is_refused() -> None:
    """At the start, without its value; of several, each must be long."""
    for value in ("short", "a" * 32 + ",short"):
        with pytest.raises(SettingsError, match="ORION_OWN_KEYS_SECRET: needs 32") as caught:
            load_settings(env_file=None, given={"orion_own_keys_secret": value})
        assert "short" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ORION_MODEL_CODEX", "gpt 5", "ORION_MODEL_CODEX: 'gpt 5' is no name of a model"),
        ("ORION_MODEL", "--flag", "ORION_MODEL: '--flag' is no name of a model"),
        (
            "ORION_MODELS_CODEX",
            "gpt-5,=gpt-6",
            "ORION_MODELS_CODEX: '=gpt-6' is no name of a model",
        ),
        ("ORION_GITHUB_URL", "http://git.example", "ORION_GITHUB_URL: GITHUB_TOKEN would be sent"),
        ("ORION_GITHUB_APP_PRIVATE_KEY", PRIVATE_KEY, "set ORION_GITHUB_APP_CLIENT_ID, too"),
        ("ORION_PULL_REQUEST_ROUNDS", "11", "ORION_PULL_REQUEST_ROUNDS"),
    ],
)
def test_values_that_cannot_work_are_told(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, with the setting and the value."""
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_0123456789")
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=said):
        load_settings(env_file=None)


@pytest.mark.parametrize(
    "key", ["hunter2hunter2", PRIVATE_KEY[:400], PRIVATE_KEY.replace("A", "B")]
)
def test_a_key_that_is_none_is_refused_unseen(key: str) -> None:
    """It may be most of a good one."""
    given = {"orion_github_app_client_id": "Iv23li", "orion_github_app_private_key": key}
    with pytest.raises(SettingsError, match="is no RSA private key in PEM") as caught:
        load_settings(env_file=None, given=given)
    assert key[5:14] not in str(caught.value)


def test_an_apps_key_may_have_its_lines_in_one() -> None:
    given = {
        "orion_github_app_client_id": "Iv23li",
        "orion_github_app_private_key": PRIVATE_KEY.replace("\n", "\\n"),
    }
    settings = load_settings(env_file=None, given=given)
    assert settings.repositories.app_private_key == PRIVATE_KEY.strip()


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("OPENAI_BASE_URL", "https://api.openai.com/v1", "https://api.openai.com"),
        ("OPENAI_BASE_URL", "https://api.openai.com/v1/", "https://api.openai.com"),
        ("OPENAI_BASE_URL", "https://models.example/v1/team", "https://models.example/v1/team"),
        ("ANTHROPIC_BASE_URL", "http://127.0.0.1:9/a/v1", "http://127.0.0.1:9/a"),
        ("GEMINI_BASE_URL", "https://models.example/v1beta", "https://models.example"),
        ("GEMINI_BASE_URL", "https://models.example", "https://models.example"),
    ],
)
def test_a_base_url_may_end_with_the_version(
    name: str, value: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the vendor's own SDK has it, or without; the form of its own keys is checked all the same."""
    monkeypatch.setenv(name, value)
    assert load_settings(env_file=None).value_of(name) == kept
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ant-x")
    if kept == "https://api.openai.com":
        with pytest.raises(SettingsError, match="a value for ANTHROPIC_API_KEY"):
            load_settings(env_file=None)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OPENAI_BASE_URL", "https://models.example/v1?key=x", "must end before"),
        ("GEMINI_BASE_URL", "https://models.example/#v1beta", "must end before"),
        ("ORION_PUBLIC_URL", "https://orion.example/?a=b", "must end before"),
        ("ANTHROPIC_BASE_URL", "https:///v1", "names no host"),
    ],
)
def test_an_address_with_more_than_a_path_is_refused(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start, not as a 404 of the first run."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"{name}: {said}"):
        load_settings(env_file=None)


def test_the_file_of_mcp_servers_is_read_once(tmp_path: Path) -> None:
    """An edit, or a mistake in it, reaches nothing that runs: an agent is told of the servers that its broker knows."""
    path, env_file = tmp_path / "mcp.json", tmp_path / ".env"
    path.write_text('{"mcpServers": {"wiki": {"url": "https://wiki.example/"}}}')
    env_file.write_text(f"ORION_MCP_CONFIG_FILE={path}\n")
    settings = load_settings(env_file=env_file)
    path.write_text('{"mcpServers": ')
    assert set(settings.mcp_servers.outside) == {"wiki"}
    path.unlink()
    assert b"wiki" in settings.mcp_servers.for_sandbox(relay=RELAY, token=RUN_TOKEN)


def test_names_in_the_file_of_mcp_servers_are_settings_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may stand in `.env`, and the environment wins; one that is nowhere is told at the start, with the setting."""
    path, env_file = tmp_path / "mcp.json", tmp_path / ".env"
    path.write_text('{"mcpServers": {"wiki": {"url": "https://wiki.example/${WIKI_KEY}"}}}')
    env_file.write_text(f"ORION_MCP_CONFIG_FILE={path}\nWIKI_KEY=of-the-file\n")
    assert load_settings(env_file=env_file).mcp_servers.secrets == ("of-the-file",)
    monkeypatch.setenv("WIKI_KEY", "of-the-environment")
    settings = load_settings(env_file=env_file)
    assert settings.mcp_servers.outside["wiki"].url == "https://wiki.example/of-the-environment"
    assert "of-the" not in repr(settings)
    monkeypatch.delenv("WIKI_KEY")
    env_file.write_text(f"ORION_MCP_CONFIG_FILE={path}\n")
    with pytest.raises(SettingsError, match=r"ORION_MCP_CONFIG_FILE: .*url: there is no WIKI_KEY"):
        load_settings(env_file=env_file)


@pytest.mark.parametrize(
    ("words", "people"),
    [
        ("", None),
        ("members", None),
        ("nobody", frozenset()),
        ("U012AB3CD W2B", frozenset({"U012AB3CD", "W2B"})),
    ],
)
def test_who_may_change_a_channels_defaults(
    monkeypatch: pytest.MonkeyPatch, words: str, people: frozenset[str] | None
) -> None:
    """Its members, nobody, or people by their ids."""
    monkeypatch.setenv("ORION_CHANNEL_DEFAULTS_BY", words)
    assert load_settings(env_file=None).access.channel_defaults_by == people


@pytest.mark.parametrize("words", ["everybody", "members, U012AB3CD", "@sam"])
def test_who_may_not_be_meant_is_named(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """A word that is neither is named at the start, and nobody may more than before."""
    monkeypatch.setenv("ORION_CHANNEL_DEFAULTS_BY", words)
    with pytest.raises(SettingsError, match="ORION_CHANNEL_DEFAULTS_BY: members, nobody, or"):
        load_settings(env_file=None)


@pytest.mark.parametrize("name", ["ORION_OPS_TOKEN", "CRON_SECRET"])
def test_what_lets_people_in_is_no_short_word(name: str) -> None:
    """It opens all that was asked; it is not shown."""
    with pytest.raises(SettingsError, match=f"{name}: needs 16 characters or more") as caught:
        load_settings(env_file=None, given={name: "fifteen-letters"})
    assert "fifteen" not in str(caught.value)
    load_settings(env_file=None, given={name: "sixteen--letters"})


@pytest.mark.parametrize(
    ("given", "toml", "said"),
    [
        ({}, "", "ORION_GITHUB_IDENTITY: person needs ORION_GITHUB_APP_CLIENT_ID"),
        ({"ORION_GITHUB_APP_CLIENT_ID": "Iv1.a"}, "", "set ORION_OWN_KEYS_SECRET, too"),
        (
            {"ORION_GITHUB_APP_CLIENT_ID": "Iv1.a", "ORION_OWN_KEYS_SECRET": "s" * 40},
            '[repositories."acme/api"]\nsetup = ["make"]\n',
            "repositories.acme/api: setup is run with GITHUB_TOKEN",
        ),
        (
            {"ORION_GITHUB_APP_CLIENT_ID": "Iv1.a", "ORION_OWN_KEYS_SECRET": "s" * 40},
            '[repositories."acme/api"]\ninit = ["make"]\n',
            "",
        ),
    ],
)
def test_what_acting_as_a_person_needs(
    given: Mapping[str, str], toml: str, said: str, tmp_path: Path
) -> None:
    """And what cannot be with it is named, with why."""
    path = tmp_path / "orion.toml"
    path.write_text(toml)
    given = {"ORION_GITHUB_IDENTITY": "person", **given}
    if not said:
        assert load_settings(env_file=None, given=given, toml=path).repositories.github_identity
        return
    with pytest.raises(SettingsError, match=re.escape(said)):
        load_settings(env_file=None, given=given, toml=path)


@pytest.mark.parametrize(
    "other",
    [
        "Acme/NPM",
        "acme/npm.git",
        "https://git.example/acme/npm",
        "https://GIT.example/Acme/npm.git/",
    ],
)
def test_a_repository_has_one_table(other: str, tmp_path: Path) -> None:
    """Two spellings of it are refused, as one of them would do nothing; both are named."""
    path = tmp_path / "orion.toml"
    path.write_text(
        '[repositories."acme/npm"]\nsetup = ["a"]\n[repositories."https://other.example/acme/npm"]\n'
        f'[repositories."{other}"]\nsetup = ["b"]\n'
    )
    said = f"repositories.{other}: is the same repository as acme/npm"
    with pytest.raises(SettingsError, match=f"(?i){re.escape(said)}") as caught:
        load_settings(env_file=None, given={"ORION_GITHUB_URL": "https://git.example"}, toml=path)
    assert "other.example" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "oauth", "said"),
    [
        ({"ORION_OWN_KEYS_SECRET": None}, {}, "at plans: set ORION_OWN_KEYS_SECRET"),
        ({"ORION_PORT": "0"}, {}, "mcpServers.plans.oauth: with ORION_PORT=0 no address is known"),
        ({"ORION_PORT": "0"}, {"redirect_url": "https://back.example"}, ""),
        ({"ORION_PORT": "0", "ORION_PUBLIC_URL": "https://orion.example"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_what_accounts_at_mcp_servers_need(
    given: Mapping[str, str | None], oauth: Mapping[str, str], said: str, tmp_path: Path
) -> None:
    """A secret to seal them by, and an address at which a login can end."""
    client = {"token_url": "https://a/t", "authorization_url": "https://a/a", "client_id": "orion"}
    server = {"url": "https://plans.example/mcp", "oauth": client | dict(oauth)}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"plans": server}}))
    given = {"ORION_MCP_CONFIG_FILE": str(path), "ORION_OWN_KEYS_SECRET": "s" * 40, **given}
    if not said:
        assert load_settings(env_file=None, given=given).mcp_servers.of_persons
        return
    with pytest.raises(SettingsError, match=re.escape(said)):
        load_settings(env_file=None, given=given)
