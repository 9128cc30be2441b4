"""Stable transitions: eigenvalues of A that are too large are pulled back."""

from itertools import pairwise

import numpy as np
import scipy.linalg

from gpssm.linear.state_space import LinearSSM

# Largest modulus of the eigenvalues of A, chosen by forecasts inside the training halves of the
# benchmarks.
RADIUS = 0.999


def spectral_radius(ssm: LinearSSM) -> float:
    """The largest modulus of the eigenvalues of A; the model is stable below 1."""
    return float(np.abs(np.linalg.eigvals(np.asarray(ssm.transition))).max())


def stabilise(ssm: LinearSSM, radius: float = RADIUS) -> LinearSSM:
    """Pull each eigenvalue λ of A with |λ| > radius back to λ · radius / |λ|, and keep the others.

    It scales the diagonal blocks of A's real Schur form, which exists even where A has no
    eigenbasis. A model that is stable already comes back as it is.
    """
    if spectral_radius(ssm) <= radius:
        return ssm
    form, basis = scipy.linalg.schur(np.asarray(ssm.transition), output="real")[:2]
    edges = [0, *(i for i in range(1, len(form)) if form[i, i - 1] == 0.0), len(form)]
    for first, end in pairwise(edges):
        block = form[first:end, first:end]
        modulus = np.abs(np.linalg.det(block)) ** (1 / (end - first))
        block *= radius / max(modulus, radius)
    return ssm._replace(transition=basis @ form @ basis.T)
