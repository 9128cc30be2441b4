"""Programs that tests run in a process of their own, as functions of texts.

`run_program(name, *arguments)` runs one of the functions below; everything that a program needs is
imported in its function, because some programs are about what imports bring with them.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path


def command(name, *arguments):
    """The command that runs a program."""
    return [sys.executable, __file__, name, *map(str, arguments)]


def run_program(name, *arguments, **options):
    """The standard output of a program, which must succeed."""
    words = command(name, *arguments)
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded(module, *names):
    """Import a module and get its attributes; which of the named modules were imported?

    `MODULE:A,B` gets the attributes A and B, otherwise the list of all is asked for.
    """
    module, _, attributes = module.partition(":")
    imported = importlib.import_module(module)
    for attribute in filter(None, attributes.split(",")):
        getattr(imported, attribute)
    dir(imported)
    print(json.dumps([name for name in names if name in sys.modules]))


def hold(folder):
    """Lock a folder for a while."""
    import time

    from gpssm.core import files

    with files.hold(Path(folder)):
        print("held", flush=True)
        time.sleep(100)


def one_baseline(*words):
    """The command line with one quick baseline."""
    from gpssm.cli import main, pipeline

    pipeline.BASELINES = ("last",)
    sys.argv[1:] = words
    main()


def forecast(path):
    """The sum of a forecast by a saved posterior."""
    import gpssm

    posterior = gpssm.load(path)
    inputs = posterior.dataset.experiments[0].u[:4]
    print(posterior.forecast(u=inputs, num_paths=12).mean.sum())


def exported():
    """The outputs of an exported model, plant.py, and all modules that were imported."""
    sys.path.insert(0, "")
    import numpy as np
    import plant

    print(json.dumps([plant.run(np.load("u.npy")).tolist(), sorted(sys.modules)]))


def casadi_step():
    """The outputs of a saved function of CasADi, and all modules that were imported."""
    import casadi
    import numpy as np

    step = casadi.Function.load("plant.casadi")
    outputs = np.asarray(step(np.load("x.npy"), [])[1]).ravel()
    print(json.dumps([outputs.tolist(), sorted(sys.modules)]))


def kept():
    """Where compiled programs are kept, how many were found there, and a number."""
    import jax
    import jax.numpy as jnp

    from gpssm.core.runtime import in_double_precision, jit

    seen = []
    jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))

    def long(x):
        for _ in range(60):
            x = jnp.sort(jnp.cumsum(jnp.sin(x)))
        return x

    value = float(in_double_precision(jit(long))(jnp.ones(9)).sum())
    hits = sum("cache_hits" in event for event in seen)
    print(json.dumps([jax.config.jax_compilation_cache_dir, hits, value]))


def draw(_):
    """A number that a small fit decides."""
    import numpy as np

    import gpssm

    posterior = gpssm.fit(np.sin(np.arange(30.0)), method="mean", num_draws=3, progress=False)
    return posterior.forecast(2).paths.sum()


def forked():
    """Draws in processes that are forked before JAX is used, and after."""
    import multiprocessing
    import warnings

    import gpssm

    warnings.simplefilter("ignore")  # JAX warns of the second fork

    def draw_forked():
        with multiprocessing.get_context("fork").Pool(1) as pool:
            return pool.map_async(draw, [0]).get(60)[0]

    assert gpssm.fit is not None
    assert draw_forked() == draw(0)
    try:
        draw_forked()
    except RuntimeError as error:
        print(error)


def many_factorisations():
    """Many batches of factorisations in one program."""
    import jax
    import jax.numpy as jnp

    from gpssm.core import linalg

    @jax.jit
    def many(batches):
        def again(_, sums):
            factors = [
                linalg.cholesky(batch + 0 * total)
                for batch, total in zip(batches, sums, strict=True)
            ]
            return [
                total + linalg.inverse_lower(factor).mean()
                for factor, total in zip(factors, sums, strict=True)
            ]

        return jax.lax.fori_loop(0, 20, again, [jnp.zeros(())] * len(batches))

    batches = [(2.0 + k) * jnp.broadcast_to(jnp.eye(60), (16, 60, 60)) for k in range(16)]
    many(batches)[0].block_until_ready()
    print("ended")


def without_packages(*names):
    """The core without optional packages, which errors name."""
    sys.modules |= dict.fromkeys(names)
    import numpy as np
    import pytest

    import gpssm
    from gpssm.core import places

    assert all((gpssm.fit, gpssm.plots, gpssm.benchmark))
    series = gpssm.Series(np.sin(np.arange(40.0)))
    settings = {"method": "mean", "num_draws": 2, "num_chains": 1, "progress": False}
    gpssm.fit(series, **settings).forecast(3, num_paths=4)
    calls = {
        "blackjax": lambda: gpssm.fit(series, method="ffvd-nuts", state_dim=1, progress=False),
        "joblib": lambda: list(places.run_processes([], None, 2)),
        "distributed": lambda: list(places.run_cluster([], None, "")),
        "matplotlib": lambda: gpssm.plots.plot_series(series),
        "sktime": lambda: gpssm.sktime,
    }
    for package, call in calls.items():
        with pytest.raises(ImportError, match=f"pip install {package}"):
            call()


def set_up_tests():
    """Set up this process as `conftest` sets up those of the tests."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    importlib.import_module("conftest")


def killed(folder):
    """A fit that is killed between a chunk and its carry."""
    set_up_tests()
    import os
    import signal

    from gpssm.inference import checkpoint
    from random_walk import small_fit

    write_arrays = checkpoint.write_arrays

    def write(path, leaves, done):
        if path.name == "carry.npz" and done > 12:
            os.kill(os.getpid(), signal.SIGKILL)
        write_arrays(path, leaves, done)

    checkpoint.write_arrays = write
    small_fit(checkpoint=folder)


def lives(fits, rows):
    """Memory maps and megabytes of a process, after each of many fits."""
    set_up_tests()
    from gpssm.core.runtime import num_maps
    from gpssm.fitting.fit import fit
    from gpssm.methods.ffvd import FFVD
    from random_walk import small_series

    lengths = json.loads(rows)
    small = {"state_dim": 1, "num_inducing": 5, "num_chains": 1, "start": "em", "progress": False}
    for number in range(int(fits)):
        series = small_series(lengths[number % len(lengths)])
        posterior = fit(series, method=FFVD(num_warmup=6, num_draws=4), seed=number, **small)
        ahead = 3 + number % len(lengths)
        posterior.forecast(ahead, [[0.0]] * ahead, num_paths=4)
        posterior.condition(small_series(ahead))
        status = Path("/proc/self/status").read_text().splitlines()
        resident = next(line for line in status if line.startswith("VmRSS"))
        print(num_maps(), int(resident.split()[1]) / 1024, flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
