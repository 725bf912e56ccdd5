"""The sound form of UDP-FL and its Harmonizer; the method as printed is `sordino.methods.udp_fl_paper`."""

from sordino.methods.udp_fl.method import UdpFl

__all__ = ["UdpFl"]
