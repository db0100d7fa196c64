"""Several prompts in one completion request: each is routed by itself, and their answers are one."""
