"""Every way a request can fail at the gateway, as a tree by phase, and the one table from it to HTTP."""

from dataclasses import dataclass, replace
from math import ceil


class GatewayError(Exception):
    """Base of the tree. The message is meant for the client, so it holds no secret and no traceback."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        """`retry_after_s`: where more is known than the table says."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StartError(GatewayError):
    """The gateway can't start; the message is the one line that the operator sees."""


class RequestPhaseError(GatewayError):
    """The request itself is at fault."""


class ModelNotFound(RequestPhaseError):
    pass


class UnsupportedEncoding(RequestPhaseError):
    pass


class NotLoopback(RequestPhaseError):
    pass


class NotAuthorised(RequestPhaseError):
    pass


class UnknownKey(RequestPhaseError):
    pass


class UnknownRequest(RequestPhaseError):
    pass


class AdmissionError(GatewayError):
    """Nothing could be tried."""


class NoReplica(AdmissionError):
    pass


class Limited(AdmissionError):
    """The caller has had its share for now."""


class RequestRateLimit(Limited):
    pass


class TokenRateLimit(Limited):
    pass


class ConcurrencyLimit(Limited):
    pass


class QueueFull(AdmissionError):
    pass


class DeadlineOutOfReach(AdmissionError):
    """By prediction; nothing was computed."""


class DeadlinePassed(AdmissionError):
    """Before the first byte."""


class UpstreamError(GatewayError):
    """A replica was tried and no byte of its answer has reached the client."""

    reason = "upstream"


class ReplicaUnreachable(UpstreamError):
    """No connection: nothing was computed."""

    reason = "connect"


class ReplicaDied(UpstreamError):
    """The connection closed before the answer was whole."""

    reason = "closed"


class ReplicaTimeout(UpstreamError):
    reason = "timeout"


class ReplicaFailed(UpstreamError):
    """The replica answered with a 5xx."""

    reason = "5xx"


class UpstreamRefused(ReplicaFailed):
    """An upstream doesn't take the key that it was shown, or wants one."""

    reason = "refused"


class ReplicaBusy(UpstreamError):
    """The replica is draining or full, which says nothing about its health."""

    reason = "busy"


class RetryBudgetExhausted(UpstreamError):
    reason = "budget"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client sees of an error."""

    status: int
    type: str
    code: str | None
    retry_after_s: int | None = None


ANSWERS: dict[type[GatewayError], Answer] = {
    ModelNotFound: Answer(404, "invalid_request_error", "model_not_found"),
    UnsupportedEncoding: Answer(415, "invalid_request_error", "unsupported_encoding"),
    NotLoopback: Answer(403, "permission_error", "loopback_only"),
    NotAuthorised: Answer(401, "authentication_error", "invalid_api_key"),
    UnknownKey: Answer(401, "invalid_request_error", "invalid_api_key"),
    UnknownRequest: Answer(404, "invalid_request_error", "request_not_found"),
    RequestRateLimit: Answer(429, "rate_limit_error", "request_rate_exceeded"),
    TokenRateLimit: Answer(429, "rate_limit_error", "token_rate_exceeded"),
    ConcurrencyLimit: Answer(429, "rate_limit_error", "concurrency_exceeded"),
    NoReplica: Answer(503, "service_unavailable", "no_replica", retry_after_s=1),
    QueueFull: Answer(429, "rate_limit_error", "queue_full", retry_after_s=1),
    DeadlineOutOfReach: Answer(503, "service_unavailable", "deadline_out_of_reach", retry_after_s=1),
    DeadlinePassed: Answer(504, "timeout_error", "deadline_passed", retry_after_s=1),
    ReplicaUnreachable: Answer(502, "upstream_error", "replica_unreachable"),
    ReplicaDied: Answer(502, "upstream_error", "replica_died"),
    ReplicaTimeout: Answer(504, "upstream_error", "replica_timeout"),
    ReplicaFailed: Answer(502, "upstream_error", "replica_failed"),
    UpstreamRefused: Answer(502, "upstream_error", "upstream_refused"),
    ReplicaBusy: Answer(503, "service_unavailable", "replicas_busy", retry_after_s=1),
    RetryBudgetExhausted: Answer(503, "service_unavailable", "retry_budget_exhausted", retry_after_s=1),
}

RETRY_AFTER_MAX_S = 60

INTERNAL = Answer(500, "server_error", "internal_error")


def answer_for(error: GatewayError) -> Answer:
    answer = ANSWERS.get(type(error), INTERNAL)
    if error.retry_after_s is None:
        return answer
    return replace(answer, retry_after_s=max(1, min(RETRY_AFTER_MAX_S, ceil(error.retry_after_s))))
