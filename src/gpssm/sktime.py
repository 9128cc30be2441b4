"""Forecasters for sktime, an optional package: `import gpssm.sktime`."""

from gpssm.fitting.forecaster import GPSSMForecaster

__all__ = ["GPSSMForecaster"]
