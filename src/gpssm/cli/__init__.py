"""The command line, which contains no logic: `app` has the commands, `pipeline` does the work."""


def main() -> None:
    """Run the command line."""
    import os

    # Before JAX is imported: see core/runtime.py for what many BLAS threads cost.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from gpssm.cli.app import run

    run()
