"""What of the host an open sandbox shares."""

from pathlib import Path

from sandbox_runtime.host import open_view


def test_only_the_allow_list_passes() -> None:
    """Proxies, installer settings and CA variables pass; credentials, host places and everything else do not."""
    shared = {
        "HTTPS_PROXY": "http://proxy",
        "no_proxy": "localhost",
        "PIP_INDEX_URL": "https://index/simple",
        "UV_INDEX": "https://index/simple",
        "npm_config_registry": "https://npm",
        "REQUESTS_CA_BUNDLE": "/etc/ca.pem",
    }
    kept_back = {
        "PATH": "/bin",
        "ANTHROPIC_API_KEY": "k",
        "GITHUB_TOKEN": "t",
        "UV_PUBLISH_TOKEN": "t",
        "NPM_CONFIG__AUTHTOKEN": "t",
        "UV_CACHE_DIR": "/home/someone/.cache/uv",
        "PIP_TARGET": "/home/someone/x",
        "PIPELINE": "1",
    }
    assert open_view({**shared, **kept_back}).env == shared


def test_files_of_indexes_and_certificates(tmp_path: Path) -> None:
    """Directories and files named by variables and by pip's configuration files are shared when they exist;
    of a local index also the files its pages link to, and nothing else that lies beside it."""
    for name in ("wheels", "simple", "more simple", "files", "private", ".config/pip"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("ca.pem", "constraints.txt"):
        (tmp_path / name).touch()
    config = tmp_path / ".config/pip/pip.conf"
    config.write_text(
        f"[global]\nextra-index-url = https://index\n  file://{tmp_path}/more%20simple\n"
        f"constraint = {tmp_path}/constraints.txt\n"
    )
    view = open_view(
        {
            "HOME": str(tmp_path),
            "PIP_FIND_LINKS": f"{tmp_path}/wheels {tmp_path}/missing https://elsewhere",
            "UV_INDEX": f"own=file://{tmp_path}/simple",
            "SSL_CERT_FILE": f"{tmp_path}/ca.pem",
        }
    )
    names = {str(path.relative_to(tmp_path)) for path in view.files if tmp_path in path.parents}
    assert names == {
        "wheels",
        "simple",
        "more simple",
        "files",
        "ca.pem",
        "constraints.txt",
        ".config/pip/pip.conf",
    }
    assert view.env["PIP_CONFIG_FILE"] == str(config)
