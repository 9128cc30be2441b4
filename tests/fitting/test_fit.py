"""The training loop: reproducible draws in the user's units, and reports of all problems."""

import dataclasses
import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import make_model
from compilations import compilations
from gpssm.core.runtime import max_maps
from gpssm.data.series import Series
from gpssm.fitting.fit import fit
from gpssm.inference.chains import Chains
from gpssm.methods.ffvd import FFVD
from gpssm.methods.spec import Spec
from gpssm.model.likelihoods import Poisson
from gpssm.model.model import GPSSM
from gpssm.model.priors import Normal
from gpssm.posterior.diagnostics import forecast_mean, with_notes
from gpssm.posterior.draws import model_of
from gpssm.starts.build import assign_roles
from programs import run_program
from random_walk import RandomWalk, small_fit, small_series


@pytest.fixture(scope="module")
def posterior():
    return small_fit()


@pytest.fixture(scope="module")
def fixed():
    """With all parameters where the linear fit put them."""
    return small_fit(hyper="fix")


def assert_same(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_shapes_and_names(posterior):
    assert posterior.draws.states[0].shape == (2, 10, 21, 1)
    assert posterior.draws.weights.shape == (2, 10, 1, 4 + 3)
    assert posterior.info.log_target.shape == (2, 10)
    assert posterior.warmup.log_target.shape == (2, 6)
    assert posterior.method == "RandomWalk"
    assert posterior.spec.settings == RandomWalk()
    assert posterior.dataset.experiments == (small_series(),)
    assert posterior.seconds.compile > 0
    assert repr(posterior) == "Posterior(RandomWalk, 2 chains of 10 draws)"


def test_chains_differ_and_move(posterior):
    first, second = posterior.draws.states[0]
    assert np.all(first[-1] != second[-1])
    assert np.ptp(posterior.draws.leaves["log_process_std"]) > 0.01


def test_a_chain_depends_neither_on_chunks_nor_on_the_chains_beside_it(posterior):
    alone = small_fit(num_chains=1, chunk=7)
    for kept in ("draws", "info", "warmup"):
        assert_same(
            getattr(alone, kept), jax.tree.map(lambda leaf: leaf[:1], getattr(posterior, kept))
        )


def test_chains_share_what_is_learned_and_go_on_apart(posterior, fixed):
    shared = 4  # of 6 iterations of the warm-up
    learned, start = posterior.model, fixed.model
    assert not set(learned.leaves("optimise")) & set(posterior.draws.leaves)
    assert np.all(learned.leaves()["kernel.log_variance"] != start.leaves()["kernel.log_variance"])
    first, second = posterior.warmup.log_target
    np.testing.assert_array_equal(first[:shared], second[:shared])
    assert np.any(first[shared:] != second[shared:])


def test_chains_with_nothing_to_optimise_share_nothing(fixed):
    first, second = fixed.warmup.log_target
    assert np.any(first != second)


def test_thinning_keeps_every_other_draw(posterior):
    thinned = small_fit(num_draws=5, thin=2)
    assert_same(thinned.draws, jax.tree.map(lambda leaf: leaf[:, 1::2], posterior.draws))
    assert_same(thinned.info.energy, posterior.info.energy[:, 1::2])
    pairs = posterior.info.acceptance.reshape(2, 5, 2)
    np.testing.assert_allclose(thinned.info.acceptance, pairs.mean(2))


def test_seeds_give_other_draws(posterior):
    assert np.all(small_fit(seed=1).draws.weights != posterior.draws.weights)


def test_vectorised_chains_agree_to_rounding(posterior):
    together = small_fit(batching="vmap")
    np.testing.assert_allclose(together.draws.states[0], posterior.draws.states[0], rtol=1e-9)


def test_progress_changes_nothing(posterior, capsys):
    assert capsys.readouterr() == ("", "")
    plain = small_fit(progress="plain")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        *(
            "gpssm: warm-up 4/16",
            "gpssm: warm-up 6/16",
            "gpssm: sampling 11/16",
            "gpssm: sampling 16/16",
        ),
    ]
    assert "R-hat" in lines[-1]
    bar = small_fit(progress=True)
    assert "16/16" in capsys.readouterr().out
    assert_same(plain.draws, posterior.draws)
    assert_same(bar.draws, posterior.draws)


def test_functions_of_a_draw(posterior):
    x, u = np.array([[0.3], [-1.0]]), np.array([[0.1], [0.5]])
    step = model_of(posterior, 1, 3).transition()(jnp.asarray(x), jnp.asarray(u))
    values = posterior.transition(x, posterior.dataset.decode_inputs(u)).draws
    np.testing.assert_allclose(values[1, 3], step.given(posterior.draws.weights[1, 3]), rtol=1e-9)


def test_outputs_are_in_the_users_units(posterior):
    model = model_of(posterior, 0, 2)
    y = posterior.draws.states[0][0, 2, 1:] @ np.asarray(model.likelihood.C.T) + np.asarray(
        model.likelihood.d
    )
    expected = y * np.std(small_series().y) + np.mean(small_series().y)
    smoothed = posterior.smooth()
    np.testing.assert_allclose(smoothed.paths[2], expected, rtol=1e-9)
    error = smoothed.mean - small_series().y
    assert np.sqrt(np.mean(error**2)) < 0.5 * np.std(small_series().y)


def test_the_mean_path_of_a_draw(posterior):
    u = np.array([[1.0], [4.0], [2.0]])
    model, x = model_of(posterior, 1, 9), posterior.draws.states[0][1, 9, -1:]
    path = []
    for control in (u - np.mean(small_series().u)) / np.std(small_series().u):
        x = model.transition()(jnp.asarray(x), jnp.asarray(control[None])).given(
            posterior.draws.weights[1, 9]
        )
        path.append(np.asarray(model.likelihood.moments(x)[0])[0])
    expected = np.array(path) * np.std(small_series().y) + np.mean(small_series().y)
    found = forecast_mean(posterior, u)
    assert found.shape == (2, 10, 3, 1)
    np.testing.assert_allclose(found[1, 9], expected, rtol=1e-9)


def test_float64_whatever_the_global_setting(posterior):
    with jax.enable_x64(False):
        single = small_fit()
        assert model_of(single, 0, 0).log_process_std.dtype == np.float64
        assert not jax.config.jax_enable_x64
    assert_same(single.draws, posterior.draws)


def test_several_series_of_unequal_length_without_controls():
    several = [Series(small_series(length).y) for length in (20, 15)]
    found = fit(
        several, method=RandomWalk(2, 2), state_dim=1, num_inducing=4, num_chains=2, progress=False
    )
    assert [path.shape for path in found.draws.states] == [(2, 2, 21, 1), (2, 2, 16, 1)]
    assert found.smooth(1).paths.shape == (4, 15, 1)
    assert forecast_mean(found, np.zeros((4, 0)), index=1).shape == (2, 2, 4, 1)


def test_roles():
    model = make_model()
    optimised = assign_roles(model, Spec(hyper="optimise"))
    assert set(optimised.leaves("sample")) == {"log_process_std", "likelihood.log_std"}
    assert set(optimised.leaves("optimise")) == {
        "kernel.log_variance",
        "kernel.log_lengthscale",
        "basis.locations",
    }
    assert set(assign_roles(model, Spec(hyper="sample")).leaves("optimise")) == set()
    assert len(assign_roles(model, Spec(hyper="sample")).leaves("sample")) == 5
    assert set(assign_roles(model, Spec(hyper="fix")).leaves("fix")) == set(model.leaves())
    spec = Spec(hyper="sample", fixed=["kernel.*"], learn=["likelihood.C", "kernel.log_variance"])
    chosen = assign_roles(model, spec)
    assert set(chosen.leaves("sample")) == {
        "basis.locations",
        "log_process_std",
        "likelihood.log_std",
        "likelihood.C",
    }


def test_sizes_may_be_chosen():
    found = small_fit(state_dim="auto", num_inducing="auto", num_draws=2)
    assert found.spec.state_dim == found.model.state_dim == 1
    assert found.spec.num_inducing == 10
    assert found.spec.kernel == "se"


def test_chains_that_disagree_are_reported(posterior):
    far = posterior.draws.states[0].copy()
    far[1] += 5.0
    draws = posterior.draws._replace(states=(far,))
    apart = dataclasses.replace(
        posterior, draws=jax.tree.map(lambda leaf: np.repeat(leaf, 20, 1), draws)
    )
    (note,) = with_notes(apart).notes
    assert note.startswith("30-step forecast mean: R-hat ")
    assert "Chains disagree" in note
    assert with_notes(posterior).notes == ()


def test_noises_without_an_exact_conditional_are_optimised():
    model = make_model().with_priors({"log_process_std": Normal(-1.0, 1.0)})
    likelihood = Poisson.build(jnp.ones((2, 2)), jnp.zeros(2), jnp.ones(2))
    poisson = GPSSM.create(model.kernel, model.basis, model.mean, likelihood, jnp.ones(2))
    assert set(assign_roles(model, Spec(hyper="optimise")).leaves("sample")) == {
        "likelihood.log_std"
    }
    assert set(assign_roles(poisson, Spec(hyper="optimise")).leaves("sample")) == {
        "log_process_std"
    }


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"method": "annealing"}, KeyError, "Unknown method 'annealing'. Known: "),
        ({"hyper": "guess"}, ValueError, "hyper must be one of optimise, sample, fix"),
        ({"hyper": "fix", "learn": ("likelihood.C",)}, ValueError, "drop one"),
        ({"fixed": ("kernel.lengthscale",)}, KeyError, "kernel.log_lengthscale"),
        ({"num_chains": 0}, ValueError, "num_chains must be a whole number"),
        ({"num_draws": 0}, ValueError, "num_draws must be a whole number"),
        ({"chunk": 0}, ValueError, "chunk must be a whole number"),
        ({"batching": "threads"}, ValueError, "batching must be one of auto, map, vmap"),
        ({"progress": "loud"}, ValueError, "progress must be"),
        ({"resume": True}, ValueError, "needs the folder of the run"),
    ],
)
def test_mistakes_are_explained(settings, kind, message):
    with pytest.raises(kind, match=message):
        small_fit(**settings)


def on_call(number, action, monkeypatch):
    """Do something to the chunk that is run `number`-th: `action(carry, chunk)` gives what takes its place."""
    whole, calls = Chains.advance, []

    def advance(self, *args):
        calls.append(args)
        result = whole(self, *args)
        return action(*result) if len(calls) == number else result

    monkeypatch.setattr(Chains, "advance", advance)


def press(carry, chunk):
    signal.raise_signal(signal.SIGINT)
    return carry, chunk


def spoil(chains):
    def action(carry, chunk):
        chunk.info.log_target[chains] = np.nan
        return carry, chunk

    return lambda carry, chunk: action(carry, jax.tree.map(np.array, chunk))


def test_an_interrupted_run_keeps_its_draws(posterior, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    on_call(3, press, monkeypatch)
    with pytest.warns(UserWarning, match="Stopped after 11 of 16 iterations: 5 draws"):
        early = small_fit()
    assert early.notes[0].startswith("Stopped after")
    assert_same(early.draws, jax.tree.map(lambda leaf: leaf[:, :5], posterior.draws))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_interrupted_in_warm_up_says_how_to_go_on(posterior, monkeypatch, tmp_path):
    on_call(1, press, monkeypatch)
    with pytest.raises(KeyboardInterrupt, match=r"in the warm-up.*checkpoint="):
        small_fit()
    on_call(1, press, monkeypatch)
    with pytest.raises(KeyboardInterrupt, match=r"in the warm-up.*resume=True"):
        small_fit(checkpoint=tmp_path)
    monkeypatch.undo()
    assert_same(small_fit(checkpoint=tmp_path, resume=True).draws, posterior.draws)


def test_a_chain_that_is_not_finite_is_reported(monkeypatch):
    on_call(3, spoil([1]), monkeypatch)
    with pytest.warns(
        UserWarning, match="Chain 1: the log target was not finite in 50 % of the draws"
    ):
        found = small_fit()
    assert found.notes == found.diagnostics().notes
    assert "note: Chain 1" in str(found.diagnostics())


def test_chains_that_are_all_not_finite_end_the_run(monkeypatch):
    on_call(2, spoil([0, 1]), monkeypatch)
    with pytest.raises(RuntimeError, match="not finite in any chain at iteration 6"):
        small_fit()


def shifted(length=20, shift=0.0):
    one = small_series(length)
    return Series(np.asarray(one.y) * (1 + shift) + shift, one.u)


def test_a_fit_compiles_few_programs_and_a_second_of_the_same_shapes_none():
    """Other data, another seed, another number of draws: all of these are arguments of the same programs."""
    settings = {
        "method": RandomWalk(),
        "state_dim": 1,
        "num_inducing": 5,
        "progress": False,
        "num_chains": 2,
    }
    jax.clear_caches()
    with compilations() as first:
        fit(shifted(), **settings)
    assert len(first) <= 29, f"a first fit compiled {len(first)} programs"
    with compilations() as again:
        fit(shifted(shift=0.3), seed=7, **settings)
    assert not again, f"{len(again)} programs were compiled again"


@pytest.mark.filterwarnings("ignore:Divergent")  # six iterations adapt nothing
def test_a_second_fit_of_a_few_rows_more_compiles_next_to_nothing():
    """Both are padded to 20 rows, in the linear fit, the sampler and the forecast."""
    method = FFVD(num_warmup=6, num_draws=4, num_leapfrog=1)
    settings = {
        "method": method,
        "start": "em",
        "state_dim": 1,
        "num_inducing": 5,
        "progress": False,
        "num_chains": 2,
    }

    def whole(rows):
        found = fit(small_series(rows), **settings)
        assert found.draws.states[0].shape == (2, 4, rows + 1, 1)
        found.forecast(3, [[0.0]] * 3, num_paths=4)

    whole(17)
    with compilations() as again:
        whole(19)
    assert len(again) <= 2  # copies of arrays


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fits", "rows"), [(300, [20]), (100, range(20, 120))], ids=["same", "other"]
)
def test_a_process_lives_through_hundreds_of_fits(fits, rows):
    """Memory maps stay far below what the system grants, and memory does not grow without end."""
    printed = run_program("lives", fits, json.dumps(list(rows)))
    maps, megabytes = np.array([line.split() for line in printed.splitlines()], float).T
    assert len(maps) == fits
    assert maps.max() < 0.75 * max_maps()
    assert megabytes[-1] < 1.5 * megabytes[fits // 3]


def test_more_states_than_rows_are_refused():
    with pytest.raises(ValueError, match="state_dim=12 is too large for 12 rows with outputs"):
        fit(small_series(12), method="ffvd", state_dim=12, progress=False)
