"""The registry of methods: a name and a configuration with its defaults each."""

from gpssm.methods.arx import ARX
from gpssm.methods.average import Average
from gpssm.methods.base import Config
from gpssm.methods.base_linear import Baseline
from gpssm.methods.ffvd import FFVD
from gpssm.methods.ffvd_c_m import FFVDCM
from gpssm.methods.ffvd_m import FFVDM
from gpssm.methods.ffvd_nuts import FFVDNUTS
from gpssm.methods.ffvd_p import ParticleGibbs
from gpssm.methods.last import Last
from gpssm.methods.lgssm import LGSSM

METHODS: dict[str, Config] = {
    "ffvd": FFVD(),
    "ffvd-m": FFVDM(),
    "ffvd-c-m": FFVDCM(),
    "ffvd-p": ParticleGibbs(),
    "ffvd-nuts": FFVDNUTS(),
    "arx": ARX(),
    "lgssm": LGSSM(),
    "last": Last(),
    "mean": Average(),
}

__all__ = [
    "ARX",
    "FFVD",
    "FFVDCM",
    "FFVDM",
    "FFVDNUTS",
    "LGSSM",
    "METHODS",
    "Average",
    "Baseline",
    "Config",
    "Last",
    "ParticleGibbs",
]
