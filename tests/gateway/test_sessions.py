from multidict import CIMultiDict

from gateway.sessions import MAX_LENGTH, session_name


def test_the_first_header_that_is_set_counts_and_then_the_user() -> None:
    headers = {"x-session-affinity": "b", "session-id": "c"}
    assert session_name(headers | {"x-session-id": "a"}, "u") == "a"
    assert session_name(headers, "u") == "b"
    assert session_name(headers | {"x-session-id": ""}, "u") == "b"
    assert session_name({}, "u") == "u"
    assert session_name({}, None) == ""
    assert session_name(CIMultiDict({"X-Session-ID": "a"}), None) == "a"


def test_a_long_name_is_hashed() -> None:
    names = ["x" * MAX_LENGTH, "x" * 5000, "x" * 5001, "\udcff" * 100]
    sessions = [session_name({}, name) for name in names]
    assert sessions[0] == names[0]
    assert len(set(sessions)) == 4
    assert all(len(session) <= MAX_LENGTH for session in sessions)
