"""What every figure has to look like."""

from matplotlib.text import Text

from agentjax.viz import style


def texts(figure):
    """Everything that one can read in a figure: (words, size, box in pixels)."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    unseen = {
        id(label)
        for axes in figure.axes
        for axis, (low, high) in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim())))
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        for label in (tick.label1, tick.label2)
        if not axes.axison or not low <= tick.get_loc() <= high
    }
    return [
        (text.get_text(), text.get_fontsize(), Text.get_window_extent(text, renderer))
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in unseen
    ]


def check(figure):
    """One width, one size of letters; no words outside the figure or on top of others."""
    found = texts(figure)
    assert figure.get_figwidth() == style.WIDTH
    assert {size for _, size, _ in found} == {style.LETTERS}
    for i, (words, _, box) in enumerate(found):
        assert -1 <= box.x0 and box.x1 <= figure.bbox.x1 + 1 and -1 <= box.y0 and box.y1 <= figure.bbox.y1 + 1, words
        for others, _, other in found[:i]:
            shared = min(box.x1, other.x1) - max(box.x0, other.x0), min(box.y1, other.y1) - max(box.y0, other.y0)
            assert min(shared) <= 2, (words, others)
