"""Charts as text."""

import re

from disagmoe.report.charts import heatmap


def test_rows_of_a_heatmap_are_numbered_from_the_first_layer() -> None:
    rows = [[(1, 1.0), (2, 2.0)], [(1, 3.0), (2, 1.5)]]
    text = heatmap("load", rows, lambda value: f"{value:.1f}", first_layer=3)
    titles = re.findall("<title>(.*?)</title>", text)
    assert titles == [
        "layer 3, step 1: 1.0",
        "layer 3, step 2: 2.0",
        "layer 4, step 1: 3.0",
        "layer 4, step 2: 1.5",
    ]
    assert re.findall('text-anchor="end">(.*?)<', text)[1:] == ["3", "4"]
