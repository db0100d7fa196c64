"""The proxies under test, by their command lines: ours with everything on, and whoever is installed."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.gateway_bench.loads import MODEL
from loadtest.peers.routers import VERSIONS, Address, Fleet, command_of, install_command, installed

OURS = "ryokan"
OURS_UPSTREAM = "ryokan:upstream"
"""The same in front of engines that publish nothing: text goes on as text, without Redis."""
PLAIN = "aiohttp"
NGINX, HAPROXY = "nginx", "haproxy"
_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"

_NGINX = """worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.err warn;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 600s;
  client_max_body_size 64m; client_body_buffer_size 64k;
  client_body_temp_path {folder}/nginx-body; proxy_temp_path {folder}/nginx-proxy; fastcgi_temp_path {folder}/nginx-f;
  uwsgi_temp_path {folder}/nginx-u; scgi_temp_path {folder}/nginx-s;
  upstream mocks {{ {servers} keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://mocks; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""
_HAPROXY = """global
  maxconn 8192
  nbthread 1
defaults
  mode http
  timeout client 600s
  timeout server 600s
  timeout connect 2s
  option http-keep-alive
  option http-no-delay
  http-reuse always
frontend proxy
  bind 127.0.0.1:{port}
  default_backend mocks
backend mocks
  balance roundrobin
{servers}
"""


@dataclass(frozen=True, slots=True)
class Site:
    """What proxies have to know."""

    mock_ports: tuple[int, ...]
    folder: Path
    """For configuration files and logs."""
    model: Path
    redis_url: str

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(f"http://127.0.0.1:{port}" for port in self.mock_ports)


@dataclass(frozen=True, slots=True)
class Proxy:
    name: str
    command: Sequence[str]
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    version: str = ""

    @property
    def is_ours(self) -> bool:
        return self.name in (OURS, OURS_UPSTREAM)


@dataclass(frozen=True, slots=True)
class Wanted:
    peers_home: Path
    only: tuple[str, ...] = ()
    """Of the peers; none: all that are installed."""
    gateway_flags: tuple[str, ...] = ()
    """Further ones, for our own gateway."""


def proxies(site: Site, wanted: Wanted, ports: Sequence[int]) -> tuple[list[Proxy], dict[str, str]]:
    """Those that are installed, and why others aren't. `ports`: two for each of them."""
    free = iter(ports)
    found = [
        ours(site, next(free), wanted.gateway_flags),
        ours(site, next(free), wanted.gateway_flags, upstreams=True),
        plain(site, next(free)),
    ]
    absent: dict[str, str] = {}
    for name in (NGINX, HAPROXY, *VERSIONS):
        if wanted.only and name not in wanted.only:
            continue
        port, metrics_port = next(free), next(free)
        proxy = (
            _system(name, site, port) if name in (NGINX, HAPROXY) else _router(name, site, wanted, port, metrics_port)
        )
        if proxy is None:
            package = name in (NGINX, HAPROXY)
            absent[name] = "not installed" if package else f"not installed: {install_command(wanted.peers_home, name)}"
        else:
            found.append(proxy)
    return found, absent


def ours(site: Site, port: int, flags: Sequence[str] = (), *, upstreams: bool = False) -> Proxy:
    command = [sys.executable, "-u", "-m", "deploy.cli", "gateway", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy", "ttft", "--served-model-name", MODEL, "--log-level", "warning", *flags]
    if not upstreams:
        redis = {"RYOKAN_REDIS_URL": site.redis_url}
        return Proxy(OURS, [*command, "--model", str(site.model)], port, redis, "this tree")
    command += ["--tokenizer", str(site.model)]
    for url in site.urls:
        command += ["--upstream", url]
    return Proxy(OURS_UPSTREAM, command, port, {"RYOKAN_REDIS_URL": ""}, "this tree")


def plain(site: Site, port: int) -> Proxy:
    return Proxy(PLAIN, [sys.executable, "-m", "loadtest.gateway_bench.plain_aiohttp", str(port), *site.urls], port)


def _system(name: str, site: Site, port: int) -> Proxy | None:
    program = shutil.which(name) or shutil.which(name, path=_SYSTEM_FOLDERS)
    if program is None:
        return None
    template, line = (_NGINX, "server 127.0.0.1:{0};") if name == NGINX else (_HAPROXY, "  server m{0} 127.0.0.1:{0}")
    servers = (" " if name == NGINX else "\n").join(line.format(mock) for mock in site.mock_ports)
    config = site.folder / f"{name}.conf"
    config.write_text(template.format(folder=site.folder, port=port, servers=servers))
    flag = "-c" if name == NGINX else "-f"
    asked = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=10, check=False)
    version = (asked.stdout + asked.stderr).strip().splitlines()[:1]
    return Proxy(name, [program, flag, str(config)], port, version="".join(version))


def _router(name: str, site: Site, wanted: Wanted, port: int, metrics_port: int) -> Proxy | None:
    version = installed(wanted.peers_home, name)
    if version is None:
        return None
    fleet = Fleet(site.urls, MODEL, site.model, site.redis_url)
    command = command_of(name, "cache_aware", wanted.peers_home)(fleet, Address(port, metrics_port))
    return Proxy(name, command, port, version=version)
