"""UDP-FL and its Harmonizer: the sound method; `udp_fl_paper` beside this folder is the printed one."""

from sordino.methods.udp_fl.method import UdpFl

__all__ = ["UdpFl"]
