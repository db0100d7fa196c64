from loadtest.machine import machine, versions


def test_the_machine_is_described() -> None:
    found = machine()
    assert isinstance(found["cores"], int) and found["cores"] >= 1
    assert isinstance(found["memory_gib"], float) and found["memory_gib"] > 0.1
    assert found["cpu"] and found["os"]


def test_versions_are_those_installed() -> None:
    import aiohttp

    assert versions()["aiohttp"] == aiohttp.__version__
