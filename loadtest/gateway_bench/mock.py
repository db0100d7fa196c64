"""`python -m loadtest.gateway_bench.mock PORT`: an engine that answers at once; see csrc/mock.cpp."""

import os
import sys

from loadtest.gateway_bench.bindings import serve_mock

if __name__ == "__main__":
    sys.exit(f"mock: port {sys.argv[1]}: {os.strerror(serve_mock(int(sys.argv[1])))}")
