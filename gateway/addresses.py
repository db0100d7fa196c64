"""Where replicas may live. What says where a replica is comes from Redis, and the gateway calls it: without a list, one
record would send it, with its clients' prompts, to any address that it can reach."""

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from replica.protocol.shape import RecordError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DEFAULT_NETWORKS = (
    *("127.0.0.0/8", "::1", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"),
    *("localhost", ".", ".local", ".svc", ".cluster.local"),
)
"""Loopback, private and carrier-grade NAT networks; names that only a network of one's own knows."""

_NEVER: tuple[Network, ...] = tuple(
    ipaddress.ip_network(network)
    for network in (
        # Link-local, where clouds keep the credentials of a machine, and their other places for the same.
        *("169.254.0.0/16", "fe80::/10", "100.100.100.200/32", "fd00:ec2::/32", "168.63.129.16/32"),
        # Nobody's: unspecified, multicast, broadcast.
        *("0.0.0.0/8", "::/128", "224.0.0.0/4", "240.0.0.0/4", "ff00::/8"),
    )
)
_URL = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+")
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.(?!-)[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class AddressList:
    """Networks, addresses and names of replicas: 10.0.0.0/8, 10.1.2.3, replica.example.org, .example.org for all names
    below it, or "." for all names without a dot."""

    def __init__(self, allowed: Sequence[str]) -> None:
        """Raises ValueError."""
        self._networks: list[Network] = []
        self._names: set[str] = set()
        self._suffixes: tuple[str, ...] = ()
        for item in map(str.lower, allowed):
            if "/" in item or ":" in item or _NUMBER.fullmatch(item.rpartition(".")[2]):
                self._networks.append(ipaddress.ip_network(item))
            elif item == "." or _NAME.fullmatch(item):
                self._names.add(item)
            elif item.startswith(".") and _NAME.fullmatch(item[1:]):
                self._suffixes += (item,)
            else:
                raise ValueError(f"{item!r} is neither a network nor a name")

    def check(self, url: str) -> None:
        """Raises RecordError. A name is judged as written: what it stands for is up to whoever serves it."""
        # NOTE: urlsplit drops line breaks, and takes hosts that others read otherwise.
        if not _URL.fullmatch(url):
            raise RecordError(f"its url {url!r} is not http://HOST:PORT", "address")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise RecordError(f"its url {url!r} is not http://HOST:PORT", "address") from error
        if port == 0 or not self._allows(host):
            raise RecordError(f"its url {url!r} may not be called: its host is not in the replica networks", "address")

    def _allows(self, host: str) -> bool:
        try:
            address = _plain(ipaddress.ip_address(host))
        except ValueError:
            return self._allows_name(host.removesuffix("."))
        never = any(address in network for network in _NEVER)
        return not never and any(address in network for network in self._networks)

    def _allows_name(self, name: str) -> bool:
        # NOTE: resolvers take 2852039166 and 0xa9fea9fe for addresses.
        if not _NAME.fullmatch(name) or _NUMBER.fullmatch(name.rpartition(".")[2]):
            return False
        return name in self._names or name.endswith(self._suffixes) or ("." in self._names and "." not in name)


def _plain(address: Address) -> Address:
    """The IPv4 address in an IPv6 one that only wraps it."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address
