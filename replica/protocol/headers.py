"""HTTP header names that pass between client, gateway and replica."""

REQUEST_ID = "x-request-id"
"""Chosen by the gateway (or by the client, if it is a plain token); the answer's id ends with it."""

REPLICA = "x-ryokan-replica"
POLICY = "x-ryokan-policy"
REASON = "x-ryokan-reason"
"""Why this replica, in one word; see gateway/routing/reason.py."""

PREDICTED_TTFT = "x-ryokan-predicted-ttft"
"""Seconds from sending it to the replica to the first token, where the policy predicts them."""

CACHED_TOKENS = "x-ryokan-cached-tokens"
"""Prompt tokens that the gateway, when it routed, expected to find in the replica's cache."""

DELIVERED_TOKENS = "x-ryokan-delivered-tokens"
"""Prompt tokens that the engine really took from its cache; set by the replica, known before its first byte."""

DELIVERED_COMMENT = b": delivered-tokens="
"""Begins the last event of a stream that came without that header, with the number after it: for engines that tell only
at the end. A line of its own before `data: [DONE]`, which any reader of server-sent events passes over."""

RESUMABLE = "x-ryokan-resumable"
"""From a gateway: the answer may have to go on at another replica; from a replica: then it can. See resume.py."""

TRACE = "x-ryokan-trace"
"""`1` on a request: keep its timeline, which `GET /trace/{request id}` then returns."""
