import signal
from pathlib import Path

import redis

from tests.processes import Process


def test_many_start_at_once_and_each_is_its_own(tmp_path: Path) -> None:
    sockets = [tmp_path / f"{number}.sock" for number in range(4)]
    processes = [Process(["deploy.valkey", str(path)], path.with_suffix(".log")) for path in sockets]
    try:
        for process, path in zip(processes, sockets, strict=True):
            assert process.wait_for(r"ready on (\S+)") == f"unix://{path}"
            with redis.Redis(unix_socket_path=str(path)) as client:
                assert client.incr("servers") == 1
    finally:
        codes = [process.stop() for process in processes]
    assert codes == [0] * len(sockets)
    assert not any(path.exists() for path in sockets)


def test_it_ends_with_its_server(tmp_path: Path) -> None:
    path = tmp_path / "valkey.sock"
    process = Process(["deploy.valkey", str(path)], tmp_path / "log")
    process.wait_for(r"(ready)")
    with redis.Redis(unix_socket_path=str(path)) as client:
        client.shutdown(nosave=True)
    assert process.wait() == 1
    assert "has ended" in process.said


def test_it_stops_on_ctrl_c(tmp_path: Path) -> None:
    process = Process(["deploy.valkey", str(tmp_path / "valkey.sock")], tmp_path / "log")
    process.wait_for(r"(ready)")
    process.signal(signal.SIGINT)
    assert process.wait() == 0
