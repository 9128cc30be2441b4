"""From a series to the free-form posterior density and its gradient."""

import jax
import jax.numpy as jnp

import gpssm
from gpssm.linear.fit import linear_fit
from gpssm.methods.spec import Spec

jax.config.update("jax_enable_x64", True)


def main() -> None:
    """Take a few gradient steps on the collapsed density, from the states of the linear model."""
    simulated = gpssm.datasets.simulate("duffing", num_steps=200, seed=1)
    train, _ = simulated.series.split(0.5)
    series = gpssm.Scaler.fit(train).scale(train)
    start = linear_fit(series, Spec(state_dim=2))
    model = gpssm.build_model(series, state_dim=2, num_inducing=20, linear=start)
    print("leaves:", {name: leaf.shape for name, leaf in model.leaves().items()})

    density = jax.jit(
        jax.value_and_grad(lambda states: gpssm.target.log_collapsed(model, states, series))
    )
    states = jnp.asarray(start.states[0])
    for step in range(5):
        value, gradient = density(states)
        print(f"step {step}: log q*(x) = {value:.3f}")
        states += 1e-5 * gradient

    weights = gpssm.target.weights_given_states(model, states, series)
    print("weights given states:", weights.mean.shape, "with precision", weights.precision.shape)


if __name__ == "__main__":
    main()
