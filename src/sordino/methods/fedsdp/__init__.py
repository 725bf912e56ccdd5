"""FedSDP with Shapley values: the sound method; the method as printed is `fedsdp_paper` beside this folder."""

from sordino.methods.fedsdp.method import FedSdp

__all__ = ["FedSdp"]
