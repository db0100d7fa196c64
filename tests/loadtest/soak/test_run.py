import io
import itertools
import json
from pathlib import Path

from rich.console import Console

from loadtest.soak.run import SoakOptions, soak, troubles


def test_trouble_leaves_time_to_come_back() -> None:
    long = troubles(1800, 3)
    assert [replica for _, replica in long] == [0, 1, 2, 0, None, 1, 2, 0]
    assert long[-1][0] <= 0.875 * 1800
    assert [replica for _, replica in troubles(20, 2)] == [0, None]
    medium = [at for at, replica in troubles(40, 2) if replica is not None]
    assert all(later - earlier >= 12 for earlier, later in itertools.pairwise(medium))


async def test_a_short_soak_ends_well(chatml_folder: Path, tmp_path: Path) -> None:
    said = io.StringIO()
    options = SoakOptions(chatml_folder, tmp_path, 20.0, replicas=2, time_scale=0.2)
    found = await soak(options, Console(file=said, width=100))
    body = json.loads(said.getvalue().splitlines()[-1])
    assert found == body["problems"] == [], body
    assert body == json.loads((tmp_path / "soak.json").read_bytes())
    figures = body["figures"]
    assert figures["answered"] > 20 and figures["left"] > 0
    assert len(json.loads((tmp_path / "soak-samples.json").read_bytes())) >= 4
