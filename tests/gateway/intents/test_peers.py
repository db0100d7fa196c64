from gateway.intents.peers import PEER_TTL_S, PEERS_MAX, Peers


def test_a_gateway_counts_until_it_was_silent_for_long() -> None:
    peers = Peers()
    assert peers.count(0.0) == 0
    peers.hear("g1", -1, 0.0)
    peers.hear("g2", -1, 1.0)
    peers.hear("g1", -1, 2.0)
    assert peers.count(2.0) == 2
    assert peers.count(1.5 + PEER_TTL_S) == 1
    assert peers.count(2.5 + PEER_TTL_S) == 0


def test_numbers_that_were_told_are_remembered() -> None:
    peers = Peers()
    assert [peers.hear("g1", number, 0.0) for number in (5, 7, 6, -1, 8)] == [-1, 5, 7, 7, 7]
    assert peers.hear("g2", 0, 0.0) == -1


def test_however_many_gateways_are_claimed_few_are_kept() -> None:
    peers = Peers()
    for number in range(3 * PEERS_MAX):
        peers.hear(f"g{number}", 0, 0.0)
    assert peers.count(0.0) == PEERS_MAX
