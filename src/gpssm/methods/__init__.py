"""The registry of methods: a name and a configuration with its defaults each."""

from gpssm.methods.base import Config
from gpssm.methods.ffvd import FFVD
from gpssm.methods.ffvd_c_m import FFVDCM
from gpssm.methods.ffvd_m import FFVDM
from gpssm.methods.ffvd_nuts import FFVDNUTS
from gpssm.methods.ffvd_p import ParticleGibbs

METHODS: dict[str, Config] = {
    "ffvd": FFVD(),
    "ffvd-m": FFVDM(),
    "ffvd-c-m": FFVDCM(),
    "ffvd-p": ParticleGibbs(),
    "ffvd-nuts": FFVDNUTS(),
}

__all__ = ["FFVD", "FFVDCM", "FFVDM", "FFVDNUTS", "METHODS", "Config", "ParticleGibbs"]
