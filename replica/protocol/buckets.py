"""Histogram buckets of the metrics that vLLM's dashboards also draw; the same on gateways and replicas, so that one
query spans both. In seconds, but for TOKENS."""

TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL = (
    *(0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1),
    *(0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0),
)
"""Also of its mean over a request. SGLang's, and two below: vLLM's begin at 10 ms, where a small model's steps are
long over."""

REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""End to end, queue, prefill, decode."""

TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
