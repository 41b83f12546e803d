"""The modules of the report, for type checkers and for their import on first use."""

import typing

from . import clusters as clusters, figure as figure, formats as formats, frames as frames, page as page
from . import reader as reader, scale_page as scale_page, schedule as schedule, sentences as sentences
from . import tables as tables

def draw_schedule(info: typing.Any) -> None: ...
