"""The house is as it is drawn, and stays simple."""

from pathlib import Path

from tests.architecture.house import build_graph, circles, figures, picture, with_picture


def test_the_picture_is_made_from_the_imports() -> None:
    """`make picture` renews it."""
    page = Path("docs/architecture.md").read_text()
    assert page == with_picture(page, picture(build_graph()))


def test_packages_import_in_one_direction() -> None:
    """No package of the service reaches itself over others."""
    assert circles(build_graph()) == []


def test_its_figures_stay_within_their_bounds() -> None:
    """No module and no constructor grows beyond what a reader takes in at once."""
    found = figures()
    assert found["modules over 560 lines"] == "none"
    assert found["constructors over 7 parameters"] == "none"
    assert int(found["modules of `app/runs`"]) <= 29
    assert int(found["calls from the dispatcher to the agent's process"].partition(":")[0]) <= 8
