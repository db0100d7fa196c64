"""TLS: Redis's own where it is built with it, else a terminator in front of Valkey, whose package isn't."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from replica.protocol.redis_url import parse_redis_url, without_secret
from replica.publisher import RedisUnreachable, check_id_is_free
from replica.wire import Wire
from tests.fleet_rig import KEYS, rig
from tests.redis_servers import PROGRAMS, VALKEY, Program, Server, free_port, running

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl is installed, to make certificates")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, ca.pem, and a certificate of it for 127.0.0.1 that serves both sides."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2")
    openssl("req", *key, "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=test")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "own.csr", "-out", "own.pem", *signed)
    return folder


@asynccontextmanager
async def encrypted(program: Program, certificates: Path, *, ask_clients: bool = False) -> AsyncIterator[int]:
    """The port of a server that speaks TLS."""
    if program is not VALKEY:
        port = free_port()
        files = ("cert-file", "own.pem"), ("key-file", "own.key"), ("ca-cert-file", "ca.pem")
        flags = [part for name, file in files for part in (f"--tls-{name}", str(certificates / file))]
        flags += ["--tls-port", str(port), "--tls-auth-clients", "yes" if ask_clients else "no"]
        with running(Server(program, *flags)):
            yield port
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "own.pem", certificates / "own.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED if ask_clients else ssl.CERT_NONE
    plain = Server(program)
    with running(plain):
        front = await asyncio.start_server(lambda *ends: _pass_on(plain.port, *ends), "127.0.0.1", 0, ssl=context)
        try:
            yield front.sockets[0].getsockname()[1]
        finally:
            front.close()


async def _pass_on(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        sink.close()

    behind = await asyncio.open_connection("127.0.0.1", port)
    await asyncio.gather(pump(reader, behind[1]), pump(behind[0], writer))


async def refusal(url: str) -> str:
    with pytest.raises(RedisUnreachable) as caught:
        await check_id_is_free(lambda: Wire(parse_redis_url(url), KEYS), "r0", without_secret(url))
    return str(caught.value)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_certificate_of_a_known_authority(program: Program, certificates: Path) -> None:
    async with (
        encrypted(program, certificates) as port,
        rig(f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificates / 'ca.pem'}") as made,
    ):
        await made.follows(1)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_client_shows_its_own(program: Program, certificates: Path) -> None:
    ca, own, key = (certificates / name for name in ("ca.pem", "own.pem", "own.key"))
    async with encrypted(program, certificates, ask_clients=True) as port:
        known = f"rediss://127.0.0.1:{port}?ssl_ca_certs={ca}"
        await refusal(known)
        async with rig(f"{known}&ssl_certfile={own}&ssl_keyfile={key}") as made:
            await made.follows(1)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_what_is_not_known_is_refused_unless_asked_for(program: Program, certificates: Path) -> None:
    async with encrypted(program, certificates) as port:
        ca = certificates / "ca.pem"
        assert "certificate verify failed" in (await refusal(f"rediss://127.0.0.1:{port}")).lower()
        assert "localhost" in (await refusal(f"rediss://localhost:{port}?ssl_ca_certs={ca}"))
        await refusal(f"redis://127.0.0.1:{port}")
        for options in ("ssl_cert_reqs=none", f"ssl_ca_certs={ca}&ssl_check_hostname=no"):
            async with rig(f"rediss://localhost:{port}?{options}") as made:
                await made.follows(1)
