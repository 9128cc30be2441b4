"""Exact conditional distributions of noises and output maps given the states."""

from gpssm.model.conditionals import (
    draw_gaussian,
    draw_noise,
    draw_noises,
    emission_given_noise,
    noise_given_emission,
    process_noise_given,
)

__all__ = [
    "draw_gaussian",
    "draw_noise",
    "draw_noises",
    "emission_given_noise",
    "noise_given_emission",
    "process_noise_given",
]
