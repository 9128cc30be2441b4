"""The model: kernels, bases, means, likelihoods, priors, the target density and its
conditionals.
"""
