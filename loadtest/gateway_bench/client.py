"""`python -m loadtest.gateway_bench.client`: a job and its bodies as JSON on stdin, what came of it on stdout.

A process of its own, so that it can be pinned to a core and the bench beside it can go on publishing.
"""

import sys
from dataclasses import asdict

import orjson

from loadtest.gateway_bench.bindings import Job, run_load


def with_head(port: int, body: bytes, api_key: str | None = None) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
    return f"{head}{key}Content-Length: {len(body)}\r\n\r\n".encode() + body


def main() -> None:
    asked = orjson.loads(sys.stdin.buffer.read())
    job = Job(**asked["job"])
    done = run_load(job, [with_head(job.port, body.encode(), asked["api_key"]) for body in asked["bodies"]])
    sys.stdout.buffer.write(orjson.dumps(asdict(done)))


if __name__ == "__main__":
    main()
