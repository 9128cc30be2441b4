"""Models as plain descriptions: exact there and back, for every part of the library, and never with foreign code."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from builders import BASIS_NAMES, make_basis, make_model
from gpssm.data.series import Series
from gpssm.model.kernels import KERNELS, Polynomial, make_kernel
from gpssm.model.likelihoods import (
    LIKELIHOODS,
    LINKS,
    Custom,
    FunctionGaussian,
    Link,
    LinkedGaussian,
    make_likelihood,
)
from gpssm.model.means import MEANS, Function, Identity, LinearMap, Zero
from gpssm.model.model import GPSSM
from gpssm.model.priors import InverseGamma, Normal
from gpssm.posterior.storage import TABLE, describe, restore, user_parts

STATE_DIM, INPUT_DIM, OUTPUT_DIM = 2, 1, 2
DIM = STATE_DIM + INPUT_DIM


def there_and_back(thing, parts=None):
    description, arrays = describe(thing)
    return restore(json.loads(json.dumps(description)), arrays, parts)


def assert_same(first, second):
    """The same tree with the same static values, and the same arrays: kind, dtype, weak type and every bit."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for left, right in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert type(left) is type(right)
        if isinstance(left, np.ndarray | np.generic | jax.Array):
            assert (left.dtype, left.shape) == (right.dtype, right.shape)
            assert getattr(left, "weak_type", None) == getattr(right, "weak_type", None)
            assert np.asarray(left).tobytes() == np.asarray(right).tobytes()
        else:
            assert left is right or left == right


def with_parts(**parts):
    plain = make_model(state_dim=STATE_DIM, input_dim=INPUT_DIM, output_dim=OUTPUT_DIM)
    own = {name: parts.get(name, getattr(plain, name)) for name in ("kernel", "basis", "mean", "likelihood")}
    return GPSSM.create(**own, process_std=jnp.array([0.1, 0.2]))


def likelihood(name):
    return make_likelihood(name, jnp.ones((OUTPUT_DIM, STATE_DIM)) / 3, jnp.arange(2.0), jnp.array([0.1, 0.7]))


KERNEL_SPECS = (*KERNELS, "se+linear*periodic")


@pytest.mark.parametrize("spec", KERNEL_SPECS)
def test_every_kernel(spec):
    model = with_parts(kernel=make_kernel(spec, STATE_DIM, DIM, variance=0.3, lengthscale=1.7))
    assert_same(model, there_and_back(model))


def test_kernels_on_some_coordinates_and_with_settings_of_their_own():
    cubic = Polynomial(jnp.zeros(STATE_DIM), jnp.ones((STATE_DIM, 2)), degree=3)
    model = with_parts(kernel=cubic.on(0, 2) + make_kernel("rq", STATE_DIM, 1).on(1))
    again = there_and_back(model)
    assert_same(model, again)
    assert again.kernel.left.inner.degree == 3
    assert again.kernel.left.dims == (0, 2)


@pytest.mark.parametrize("name", BASIS_NAMES)
def test_every_basis(name):
    model = with_parts(basis=make_basis(name, STATE_DIM, INPUT_DIM))
    assert_same(model, there_and_back(model))


def drag(x, u):
    return 0.9 * x - 0.1 * x**3


MEAN_PARTS = {
    "identity": Identity(),
    "zero": Zero(),
    "linear": LinearMap(jnp.eye(2), jnp.ones((2, 1)), jnp.zeros(2)),
    "function": Function(drag),
}


@pytest.mark.parametrize("name", MEANS)
def test_every_mean(name):
    model = with_parts(mean=MEAN_PARTS[name])
    assert_same(model, there_and_back(model, {"mean.function": drag} if name == "function" else None))


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood(name):
    model = with_parts(likelihood=likelihood(name))
    assert_same(model, there_and_back(model))


def test_links_of_the_library_go_by_name_and_are_the_same_objects():
    for name, link in LINKS.items():
        description, arrays = describe(link)
        assert description == {"link": name}
        assert restore(description, arrays) is link


def test_priors_and_roles():
    model = make_model().with_roles("sample", "kernel.*").with_roles("fix", "likelihood.*")
    model = model.with_priors({"likelihood.C": Normal(jnp.ones((2, 2)), 0.3), "log_process_std": InverseGamma(2.0, 1)})
    again = there_and_back(model)
    assert_same(model, again)
    assert again.roles == model.roles


def test_integers_booleans_single_precision_and_special_values_keep_every_bit():
    special = np.array([np.nan, -np.nan, np.inf, -0.0, 5e-324, 1 / 3, np.nextafter(1, 2)])
    thing = {
        "special": special,
        "single": jnp.arange(3, dtype=jnp.float32) / 3,
        "int": np.arange(4, dtype=np.int16).reshape(2, 2),
        "bool": (jnp.array([True, False]), np.bool_(True)),
        "numbers": [np.float64(0.1), np.int32(7), 0.1, -0.0, 2**70, True, None, "ünï"],
        "weak": (jnp.asarray(2), jnp.asarray(0.1)),
        "empty": (np.zeros((3, 0)), jnp.zeros((0,), jnp.int32)),
    }
    assert_same(thing, there_and_back(thing))


def test_a_number_made_in_single_precision_stays_single():
    with jax.enable_x64(False):
        prior = Normal(0.1, 1.0)
    again = there_and_back(prior)
    assert again.mean.dtype == jnp.float32
    assert_same(prior, again)


def test_a_series_keeps_its_names_and_gaps():
    series = Series([[1.0, np.nan], [2.0, 3.0]], name="küche", dt=0.1, outputs=("θ °C", "b"), window=1)
    assert there_and_back(series) == series


def test_names_with_dots_and_slashes_of_their_own_do_not_clash():
    thing = {"a.b": np.ones(2), "a": {"b": np.zeros(3)}, "c/d": np.arange(2)}
    description, arrays = describe(thing)
    assert len(arrays) == 3
    assert not any("/" in name for name in arrays)
    assert_same(thing, restore(description, arrays))


class Spring(eqx.Module):
    stiffness: jax.Array
    order: int = eqx.field(static=True)

    def __call__(self, x, *_):
        return x - self.stiffness * x**self.order


def test_what_a_users_function_has_learned_is_stored_and_its_code_is_not():
    model = with_parts(mean=Function(Spring(jnp.array([0.3, 0.4]), 3)))
    assert "mean.function.stiffness" in describe(model)[1]
    fresh = Spring(jnp.zeros(2), 3)
    assert_same(model, there_and_back(model, {"mean.function": fresh}))
    with pytest.raises(ValueError, match=r"'mean.function'.*Spring.*\(2,\).*\(5,\)"):
        there_and_back(model, {"mean.function": Spring(jnp.zeros(5), 3)})


def test_a_users_own_kernel_is_a_part():
    class Constant(type(make_kernel("se", 1, 1))):
        def correlation(self, squared_distance):
            return jnp.ones_like(squared_distance)

    model = with_parts(kernel=Constant.build(STATE_DIM, DIM, variance=0.2))
    assert list(user_parts(describe(model)[0])) == ["kernel"]
    assert_same(model, there_and_back(model, {"kernel": Constant.build(STATE_DIM, DIM)}))


def test_missing_parts_are_named_all_at_once():
    own = LinkedGaussian(C=jnp.ones((2, 2)), d=jnp.zeros(2), log_std=jnp.zeros(2), link=Link(jnp.sin, jnp.arcsin))
    model = with_parts(mean=Function(drag), likelihood=own)
    parts = {"mean.function": drag, "likelihood.link.forward": jnp.sin, "likelihood.link.inverse": jnp.arcsin}
    assert_same(model, there_and_back(model, parts))
    with pytest.raises(ValueError, match=r"mean.function was test_serialise.drag.*parts=") as caught:
        there_and_back(model)
    assert all(name in str(caught.value) for name in parts)


@pytest.mark.parametrize(
    ("own", "names"),
    [
        (FunctionGaussian(log_std=jnp.zeros(2), function=jnp.sin), ["likelihood.function"]),
        (Custom(drag, None, jnp.cos), ["likelihood.function", "likelihood.sampler"]),
    ],
)
def test_likelihoods_with_users_functions(own, names):
    model = with_parts(likelihood=own)
    assert list(user_parts(describe(model)[0])) == names
    functions = {name: getattr(own, name.split(".")[1]) for name in names}
    assert_same(model, there_and_back(model, functions))


def test_only_classes_of_the_table_can_be_made():
    assert all(cls.__module__.startswith("gpssm.") for cls in TABLE.values())
    for name in ("os.system", "builtins.eval", "subprocess.Popen", "kernels.Unheard"):
        with pytest.raises(ValueError, match="no class"):
            restore({"class": name, "fields": {}}, {})


def test_what_cannot_be_stored_is_refused_by_name():
    with pytest.raises(TypeError, match=r"a\.1 is a complex"):
        describe({"a": [1.0, 1j]})
