"""Public names and the registry."""

import subprocess
import sys

import pytest

import sandbox_runtime
from sandbox_runtime import PROVIDERS, SandboxError, SandboxErrorCode, load_provider
from sandbox_runtime.registry import provider_names, provider_spec, provider_specs


def test_all_is_sorted_and_complete() -> None:
    """`__all__` holds every public name of the package, sorted (constants, classes, functions), and each exists."""
    names = sandbox_runtime.__all__
    assert names == sorted(names, key=lambda n: (not n.isupper(), n[0].islower(), n))
    modules = {
        name.partition(".")[2] for name in sys.modules if name.startswith("sandbox_runtime.")
    }
    public = {name for name in vars(sandbox_runtime) if not name.startswith("_")} - modules
    assert public == set(names)


@pytest.mark.parametrize("name", sorted(PROVIDERS))
def test_every_entry_loads(name: str) -> None:
    """Each name of the map leads to a class that can be imported."""
    assert isinstance(load_provider(name), type)


def test_unknown_provider_names_the_known() -> None:
    """An unknown provider's error lists those there are."""
    with pytest.raises(ValueError, match=r"'dcker'; known: .*docker, fake, local"):
        load_provider("dcker")


def test_missing_package_names_the_extra() -> None:
    """A provider whose package is absent says which extra to install."""
    with pytest.raises(SandboxError, match=r"pip install 'orion\[cloud\]'") as caught:
        load_provider("cloud", providers={"cloud": "no_such_package_here.cloud:Provider"})
    assert caught.value.code is SandboxErrorCode.UNSUPPORTED


def test_importing_loads_no_provider() -> None:
    """The library itself imports of providers only what is known without them: they are loaded when they are chosen."""
    code = "import sandbox_runtime, sys; print(*[m for m in sys.modules if '.providers.' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    inside = {module.partition(".providers.")[2] for module in done.stdout.split()}
    assert inside == set(provider_names())


def test_every_spec_is_its_own() -> None:
    """It has the name of its line, and a value of each credential and a region are known words."""
    for name, spec in zip(provider_names(), provider_specs(), strict=True):
        assert (spec.name, spec.provider) == (name, PROVIDERS[name])
        known = {one.name for one in spec.settings}
        assert {word for group in spec.credentials for word in group} <= known
        assert spec.is_cloud is bool(spec.credentials)


def test_unknown_spec_names_the_known() -> None:
    """As an unknown provider does."""
    with pytest.raises(ValueError, match="unknown sandbox provider 'nope'"):
        provider_spec("nope")
