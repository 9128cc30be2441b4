"""The registry of methods, from names to settings with default values."""

from gpssm.inference.settings import MethodSettings
from gpssm.methods.auto import Auto
from gpssm.methods.envi import EnVI
from gpssm.methods.exact import Exact
from gpssm.methods.ffvd import FFVD
from gpssm.methods.fic_pg import FICParticleGibbs
from gpssm.methods.gp_narx import GPNARX
from gpssm.methods.igpssm import IGPSSM
from gpssm.methods.latents import FFVDCM, FFVDM, FFVDNUTS
from gpssm.methods.linear import ARX, LGSSM, Average, Baseline, Last, RegularisedARX
from gpssm.methods.lstm import LSTMNetwork
from gpssm.methods.particle_gibbs import ParticleGibbs
from gpssm.methods.prssm import PRSSM
from gpssm.methods.quick import Quick
from gpssm.methods.rgpssm import RecursiveGPSSM
from gpssm.methods.rrank import ReducedRank
from gpssm.methods.vcdt import VCDT, VCDTFactorised
from gpssm.methods.vgpssm import VGPSSM

METHODS: dict[str, MethodSettings] = {
    "auto": Auto(),
    "ffvd": FFVD(),
    "quick": Quick(),
    "ffvd-m": FFVDM(),
    "ffvd-c-m": FFVDCM(),
    "ffvd-p": ParticleGibbs(),
    "ffvd-nuts": FFVDNUTS(),
    "fic-pg": FICParticleGibbs(),
    "vgpssm": VGPSSM(),
    "igpssm": IGPSSM(),
    "rrank": ReducedRank(),
    "prssm": PRSSM(),
    "vcdt": VCDT(),
    "vcdt-factorised": VCDTFactorised(),
    "envi": EnVI(),
    "rgpssm": RecursiveGPSSM(),
    "exact": Exact(),
    "gp-narx": GPNARX(),
    "arx": ARX(),
    "arx-reg": RegularisedARX(),
    "lgssm": LGSSM(),
    "lstm": LSTMNetwork(),
    "last": Last(),
    "mean": Average(),
}

__all__ = [
    "ARX",
    "FFVD",
    "FFVDCM",
    "FFVDM",
    "FFVDNUTS",
    "GPNARX",
    "IGPSSM",
    "LGSSM",
    "METHODS",
    "PRSSM",
    "VCDT",
    "VGPSSM",
    "Auto",
    "Average",
    "Baseline",
    "EnVI",
    "Exact",
    "FICParticleGibbs",
    "LSTMNetwork",
    "Last",
    "MethodSettings",
    "ParticleGibbs",
    "Quick",
    "RecursiveGPSSM",
    "ReducedRank",
    "RegularisedARX",
    "VCDTFactorised",
]
