import socket
import threading
from pathlib import Path

from rich.console import Console

from deploy.local import FleetOptions, LocalFleet


def test_a_gateway_that_hangs_up_knows_no_replica_yet(tmp_path: Path) -> None:
    fleet = LocalFleet(FleetOptions(tmp_path, "m"), tmp_path, Console())
    with socket.create_server(("127.0.0.1", 0)) as server:
        fleet.gateway_url = f"http://127.0.0.1:{server.getsockname()[1]}"
        hang_up = threading.Thread(target=lambda: server.accept()[0].close())
        hang_up.start()
        assert fleet._routable() == 0
        hang_up.join()
    assert fleet._routable() == 0
