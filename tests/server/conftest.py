# SPDX-License-Identifier: MIT
import pytest
from serving import Server, find_server


@pytest.fixture(scope="session", autouse=True)
def program():
    """The server has to be there: without it nothing here says anything."""
    assert find_server().is_file(), f"{find_server()} is not there; build the target first, or set SHARPI_SERVER"


@pytest.fixture(scope="module")
def server():
    """One that is plain, for all tests of a file."""
    with Server() as running:
        yield running
