"""The report page that the tests of this folder look at."""

import pytest

from tests.helpers.report_place import Place


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("report"))
