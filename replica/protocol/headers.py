"""HTTP header names that pass between client, gateway and replica."""

REQUEST_ID = "x-request-id"
"""Chosen by the gateway (or by the client, if it is a plain token); the answer's id ends with it."""

REPLICA = "x-ryokan-replica"
POLICY = "x-ryokan-policy"
CACHED_TOKENS = "x-ryokan-cached-tokens"
"""Prompt tokens that the gateway, when it routed, expected to find in the replica's cache."""

DELIVERED_TOKENS = "x-ryokan-delivered-tokens"
"""Prompt tokens that the engine really took from its cache; set by the replica, known before its first byte."""

TRACE = "x-ryokan-trace"
"""`1` on a request: keep its timeline, which `GET /trace/{request id}` then returns."""
