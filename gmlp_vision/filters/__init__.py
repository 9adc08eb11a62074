"""What a network learned about space: its token operators as numbers, as figures and as a page to explore."""

from gmlp_vision.filters.bank import FilterBank, FilterLayer, LayerStats
from gmlp_vision.filters.draw import plot_filters, plot_kernels, plot_stats
from gmlp_vision.filters.extract import extract
from gmlp_vision.filters.measure import toeplitz_average
from gmlp_vision.filters.sheet import save_figure
from gmlp_vision.filters.table import format_stats, write_stats

__all__ = [
    "FilterBank",
    "FilterLayer",
    "LayerStats",
    "extract",
    "format_stats",
    "plot_filters",
    "plot_kernels",
    "plot_stats",
    "save_figure",
    "toeplitz_average",
    "write_stats",
]
