"""FedSDP with Shapley values: the sound method; `fedsdp_paper` beside this folder is the printed one."""

from sordino.methods.fedsdp.method import FedSdp

__all__ = ["FedSdp"]
