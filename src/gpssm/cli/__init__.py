"""The command line: words in, words out, no logic of its own. `app` has the commands, `pipeline` what `fit` does."""


def main() -> None:
    """Run the command line."""
    import os

    import platformdirs

    # Before JAX is imported: see core/runtime.py for what many BLAS threads cost. Programs are kept between runs.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", platformdirs.user_cache_dir("gpssm"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")

    from gpssm.cli.app import run

    run()
