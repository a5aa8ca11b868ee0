"""Methods by name. A new method is a file here and an entry in one of the tuples below."""

from crodobo.config import check_name
from crodobo.methods.atdoc_na import ATDOCNA
from crodobo.methods.base import Method
from crodobo.methods.bn_statistics import BNStatistics
from crodobo.methods.cdan import CDAN
from crodobo.methods.cdan_e import CDANE
from crodobo.methods.conda import ConDA
from crodobo.methods.continual import Continual
from crodobo.methods.coral import CORAL
from crodobo.methods.cotta import CoTTA
from crodobo.methods.covid_da import COVIDDA
from crodobo.methods.crodobo import CroDoBo
from crodobo.methods.dan import DAN
from crodobo.methods.dann import DANN
from crodobo.methods.eata import EATA
from crodobo.methods.ent import ENT
from crodobo.methods.mdd import MDD
from crodobo.methods.no_adaptation import NoAdaptation
from crodobo.methods.sar import SAR
from crodobo.methods.shot import SHOT
from crodobo.methods.single import Single
from crodobo.methods.source_only import SourceOnly
from crodobo.methods.tent import TENT

# In the order of the tables: the paper's baselines, CroDoBo, other online methods, methods that keep the target.
PAPER = (SourceOnly, DAN, CORAL, DANN, ENT, MDD, CDAN, CDANE)
CRODOBO = (Single, Continual, CroDoBo)
WIDER = (NoAdaptation, BNStatistics, TENT, EATA, SAR, CoTTA)
KEEPING = (ConDA, SHOT, ATDOCNA, COVIDDA)

REGISTRY: dict[str, type[Method]] = {method.name: method for method in (*PAPER, *CRODOBO, *WIDER, *KEEPING)}

__all__ = ["REGISTRY", "CroDoBo", "Method", "Single", "SourceOnly", "get_method"]


def get_method(name: str) -> type[Method]:
    """The method of that name.

    >>> get_method("crodobo").__name__
    'CroDoBo'
    """
    check_name("method", name, REGISTRY)
    return REGISTRY[name]
