"""Section by section of the model: kernels, bases, means, likelihoods, priors, the target and its
conditionals.
"""
