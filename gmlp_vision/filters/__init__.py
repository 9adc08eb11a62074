"""What a network learned about space: its token operators as numbers, as figures and as a page to explore."""

from gmlp_vision.filters.bank import FilterBank, FilterLayer, LayerStats
from gmlp_vision.filters.curves import plot_stats
from gmlp_vision.filters.draw import plot, plot_filters, plot_kernels, plot_units
from gmlp_vision.filters.explorer import write_explorer
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
    "plot",
    "plot_filters",
    "plot_kernels",
    "plot_stats",
    "plot_units",
    "save_figure",
    "toeplitz_average",
    "write_explorer",
    "write_stats",
]
