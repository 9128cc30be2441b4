"""The command line: `app` has the commands, and `pipeline` executes runs."""


def main() -> None:
    """Run the command line."""
    import os

    # Before JAX is imported: see core/runtime.py for the cost of many BLAS threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from gpssm.cli.app import run

    run()
