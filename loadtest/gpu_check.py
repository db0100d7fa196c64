"""All checks and measurements of the GPU path, in under 8 minutes on one card: `python -m loadtest.gpu_check`.

Writes one JSON file and prints a table. With `--device cpu --small` it runs to its end in seconds on any machine, by
which the check itself is tested; no figure means anything then.
"""

from loadtest.gpu.command import app

if __name__ == "__main__":
    app()
