import pytest

from gateway.addresses import DEFAULT_NETWORKS, AddressList
from replica.protocol.shape import RecordError

DEFAULT = AddressList(DEFAULT_NETWORKS)


def allows(addresses: AddressList, url: str) -> bool:
    try:
        addresses.check(url)
    except RecordError as error:
        assert error.reason == "address"
        return False
    return True


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8001",
        "http://10.1.2.3:80",
        "https://172.31.0.1",
        "http://192.168.0.5:1",
        "http://100.64.0.1:1",
        "http://[::1]:8001",
        "http://[fd12::1]:8001",
        "http://[::ffff:10.0.0.1]:1",
        "http://localhost:1",
        "http://LOCALHOST:1",
        "http://replica-1:8000",
        "http://replica_1:8000",
        "http://a.b.svc.cluster.local:8000",
    ],
)
def test_by_default_networks_of_one_s_own_are_allowed(url: str) -> None:
    assert allows(DEFAULT, url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "file:///etc/passwd",
        "ftp://10.0.0.1",
        "http://",
        "http://:80",
        "http://10.0.0.1:0",
        "http://10.0.0.1:99999",
        "http://10.0.0.1:x",
        "http://10.0.0.1:80/path",
        "http://10.0.0.1:80/",
        "http://10.0.0.1?x",
        "http://10.0.0.1?",
        "http://10.0.0.1#",
        "http://u:p@10.0.0.1",
        "http://@10.0.0.1",
        "http://10.0.0.1 ",
        "http://10.0.0.1\n",
        "http://[::1",
        "http://8.8.8.8",
        "http://172.32.0.1",
        "http://[2001:db8::1]",
        "http://example.org",
        "http://metadata.google.internal",
        "http://evil.cluster.local.example.org",
        "http://evilsvc.example",
        "http://ⅰ.local",
        "http://-x",
    ],
)
def test_nothing_else_is(url: str) -> None:
    assert not allows(DEFAULT, url)


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[fe80::1]",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::]",
        "[fd00:ec2::254]",
        "100.100.100.200",
        "168.63.129.16",
        "2852039166",
        "0xa9fea9fe",
        "0xA9.0xFE.0xA9.0xFE",
        "169.254.43518",
        "0251.0376.0251.0376",
        "0.0.0.0",
        "[::]",
        "224.0.0.1",
        "255.255.255.255",
    ],
)
def test_places_where_clouds_keep_secrets_and_nobody_s_are_refused_whatever_the_list(host: str) -> None:
    everywhere = AddressList(("0.0.0.0/0", "::/0", "."))
    assert allows(everywhere, "http://8.8.8.8")
    assert not allows(everywhere, f"http://{host}:80")


def test_a_list_of_one_s_own() -> None:
    addresses = AddressList(("10.1.0.0/16", "10.9.9.9", "2001:db8::/32", "Replica.example.org", ".inn.example"))
    for host in ("10.1.2.3", "10.9.9.9", "[2001:db8::5]", "replica.example.org", "a.inn.example", "b.a.INN.example."):
        assert allows(addresses, f"http://{host}:1"), host
    for host in ("10.2.0.1", "127.0.0.1", "localhost", "x.replica.example.org", "inn.example", "ainn.example", "one"):
        assert not allows(addresses, f"http://{host}:1"), host


@pytest.mark.parametrize("item", ["10.0.0.1/8", "10.0.0", "http://x", "*.example.org", "a b", "", "..", ".-x"])
def test_a_list_that_makes_no_sense_is_refused(item: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        AddressList((item,))
