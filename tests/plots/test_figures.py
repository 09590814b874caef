"""Figures show the numbers of the tensors: they are read back and compared."""

import importlib
import re
import sys
import warnings
from xml.etree import ElementTree

import pytest
import torch
from matplotlib import font_manager
from matplotlib.figure import Figure

import regard as rg
from regard.attention import plotting
from regard.plots import figures, fonts
from regard.plots.arrays import HeadArrays

from .views import CHINESE, ENGLISH, HOSTILE, view_of


def texts(figure):
    """Everything that is written on a figure, line breaks as spaces."""
    found = figure.findobj(match=lambda artist: hasattr(artist, "get_text"))
    return [artist.get_text().replace("\n", " ") for artist in found]


def image_of(figure, n=0):
    return figure.axes[n].images[0].get_array()


def test_plain_arrays_are_drawn():
    cells, row = torch.tensor([[[0.25, 0.75], [1.0, 0.0]]]), torch.tensor([[0.5, 1.0]])
    arrays = HeadArrays("by hand", (1, 1, 2, 2), 0, [0], cells, False, None, row, row, row, row, torch.tensor([0]))
    figure = figures.draw_heads(arrays)
    assert torch.equal(torch.from_numpy(image_of(figure).data), cells[0])
    assert "by hand" in texts(figure) and "head 0" in texts(figure)
    tiles = torch.tensor([[2, 0], [1, 2]])
    figure = figures.draw_mask(tiles, list("abcd"), list("abcd"), tile=2, title="tiles", rule="by hand")
    assert torch.equal(torch.from_numpy(~image_of(figure).mask), tiles > 0)
    assert any("tiles of 2 × 2 pairs: 3 of 4 are not empty, 1 of them mixed" in text for text in texts(figure))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queries": ["a", "b"]}, "queries has 2 words; there are 5 queries. Give one word for each"),
        ({"keys": ENGLISH * 2}, "keys has 10 words; there are 5 keys"),
        ({"keys": "hello"}, "keys is the text 'hello'; it must be a list of 5 words"),
        ({"head": 3}, "head is 3; there are 3, so it must be a whole number from 0 to 2"),
        ({"head": -1}, "head is -1"),
        ({"head": True}, "head is True"),
        ({"batch": 2}, "batch is 2; there are 2"),
        ({"batch": 0.0}, "batch is 0.0"),
    ],
)
@pytest.mark.parametrize("make", [plotting.plot_view, plotting.view_arrays])
def test_labels_and_indices_that_do_not_fit_are_refused(make, options, message):
    with pytest.raises(rg.BadInput, match=re.escape(message)):
        make(view_of(weights=True), **options)


def test_empty_view_is_refused():
    with pytest.raises(rg.BadInput, match="nothing to draw"):
        rg.look(torch.ones(1, 1, 0, 4), torch.ones(1, 1, 3, 4)).plot()


def test_image_is_the_tensor_and_masked_cells_are_hatched():
    view = view_of(mask=rg.Causal(), weights=True)
    figure = view.plot(batch=1)
    assert isinstance(figure, Figure)
    for head in range(3):
        held = image_of(figure, head)
        assert torch.equal(torch.from_numpy(held.data), view.weights[1, head])
        assert torch.equal(torch.from_numpy(held.mask), ~rg.Causal().dense(5, 5))
        assert figure.axes[head].patch.get_hatch()
    norm = figure.axes[0].images[0].norm
    assert (norm.vmin, norm.vmax) == (0.0, 1.0)


def test_legend_shows_masked_only_where_cells_are():
    assert not any("masked" in text for text in texts(view_of(weights=True).plot()))
    assert "masked" in texts(view_of(weights=True, mask=rg.Causal()).plot())


def test_figure_of_one_head_writes_its_numbers():
    view = view_of(weights=True, mask=rg.Causal())
    found = texts(view.plot(head=1))
    assert "head 1" in found and "head 0" not in found
    numbers = sorted(text for text in found if re.fullmatch(r"\d\.\d\d", text) and text not in ("0.01", "0.05", "0.25"))
    wanted = [f"{w:.2f}" for w in view.weights[0, 1][rg.Causal().dense(5, 5)].tolist()]
    assert numbers == sorted(w for w in wanted if w not in ("0.01", "0.05", "0.25"))


def test_caption():
    view = view_of(mask=rg.Lengths(torch.tensor([5, 5]), torch.tensor([3, 5])), weights=True)
    written = " | ".join(texts(view.plot()))
    assert "rows: queries · columns: keys · each row sums to 1 (measured 1.000000 …" in written
    assert "2 queries have no allowed key (sum 0)" in written
    assert "not why the model answered" in written
    assert "weight, 0 … 1 · colour: √ weight" in written
    assert "no allowed key" not in " | ".join(texts(view.plot(batch=1)))


def test_figure_draws_at_most_16_heads():
    figure = view_of(heads=20, weights=True).plot()
    assert any("16 of 20 heads" in text for text in texts(figure))
    assert sum(bool(axes.images) for axes in figure.axes) == 16


def test_caption_explains_the_offset_of_rows():
    assert any("row r is position i = r + 6" in text for text in texts(view_of(3, 9, weights=True).plot()))


def test_labels_on_the_axes_stack_long_chinese_words():
    figure = view_of(weights=True).plot(queries=ENGLISH, keys=CHINESE)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ENGLISH
    labels = figure.axes[2].get_xticklabels()
    assert [label.get_text().replace("\n", "") for label in labels] == CHINESE
    assert {label.get_rotation() for label in labels} == {0.0}


def test_labels_are_not_parsed_as_math_or_markup(tmp_path):
    figure = view_of(weights=True).plot(queries=HOSTILE, keys=HOSTILE, title="$\\bad{")
    ElementTree.parse(figures.save_figure(figure, tmp_path / "x.svg"))
    assert "$\\frac$" in texts(figure)


@pytest.mark.parametrize("count", [65, 300])
def test_many_labels_are_thinned(count):
    figure = view_of(count, count, heads=1, batch=1, weights=True).plot(keys=[f"w{n}" for n in range(count)])
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert 5 <= len(labels) <= 64 and labels[0] == "w0"
    places = figure.axes[0].get_xticks()
    assert labels == [f"w{int(place)}" for place in places]


def test_buckets_are_labelled_by_their_ends():
    figure = view_of(10, 10, heads=1, map=(4, 3)).plot(queries=list("abcdefghij"))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a–b", "c–e", "f–g", "h–j"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0–2", "3–5", "6–9"]
    assert any("pooled" in text for text in texts(figure))


def test_view_without_weights_draws_statistics():
    view = view_of(mask=rg.Causal())
    figure = view.plot(queries=ENGLISH)
    for axes, name in zip(figure.axes, ("entropy", "distance", "peak", "received"), strict=True):
        for head, line in enumerate(axes.lines):
            assert torch.equal(torch.as_tensor(line.get_ydata()), getattr(view, name)[0, head])


def test_long_curves_are_means():
    view = view_of(300, 300, heads=1)
    figure = view.plot()
    assert figure.axes[0].get_title().endswith("means of 3")
    line = figure.axes[0].lines[0]
    assert torch.allclose(torch.as_tensor(line.get_ydata()), view.entropy[0, 0].unflatten(0, (100, 3)).mean(-1))
    assert line.get_xdata()[:2].tolist() == [1.0, 4.0]


def test_svg_keeps_text(tmp_path):
    path = figures.save_figure(view_of(weights=True).plot(keys=CHINESE, title="动物"), tmp_path / "x.svg")
    written = path.read_text(encoding="utf-8")
    assert "动物" in written and "疲" in written


def test_png_of_chinese_warns_without_a_font(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "cjk_font", lambda: None)
    figure = view_of(weights=True).plot(keys=CHINESE)
    with pytest.warns(UserWarning, match="fonts-wqy-zenhei") as caught:
        figures.save_figure(figure, tmp_path / "x.png")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures.save_figure(figure, tmp_path / "x.svg")


def test_installed_chinese_font_is_used(tmp_path, chinese_font, caplog):
    figure = view_of(weights=True).plot(keys=CHINESE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures.save_figure(figure, tmp_path / "x.png")
    assert fonts.cjk_font() in figure.axes[0].get_xticklabels()[0].get_family()
    assert not caplog.records


def test_font_newer_than_the_list_of_matplotlib_is_found(monkeypatch, chinese_font):
    known = [font for font in font_manager.fontManager.ttflist if font.name not in fonts.CJK_FONTS]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", known)
    assert fonts.listed_cjk_font() is None
    assert fonts.cjk_font() in fonts.CJK_FONTS


@pytest.mark.parametrize("suffix", [".html", ".png", ".svg"])
@pytest.mark.parametrize("options", [{"weights": True}, {"map": (2, 2)}, {}])
def test_view_saves_files(tmp_path, suffix, options):
    view_of(**options).save(tmp_path / f"x{suffix}", keys=ENGLISH)
    start = {".html": b"<!doctype html>", ".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    assert (tmp_path / f"x{suffix}").read_bytes().startswith(start)


def test_notebook_shows_a_figure():
    assert view_of(weights=True).plot(head=0)._repr_png_().startswith(b"\x89PNG")


def test_missing_matplotlib_names_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "regard.plots.figures")
    with pytest.raises(rg.Missing, match=re.escape('pip install "regard[figures]"')):
        importlib.import_module("regard.plots.figures")


def test_mask_is_drawn_pair_by_pair():
    mask = rg.Window(1, 2) | rg.Global(1)
    figure = mask.plot(7, 9)
    held = image_of(figure)
    assert torch.equal(torch.from_numpy(~held.mask), mask.dense(7, 9)) and set(held.compressed()) == {2}
    assert figure.axes[0].patch.get_hatch()
    written = texts(figure)
    assert repr(mask) in written
    assert f"i may attend to j where {mask.formula} {int(mask.dense(7, 9).sum())} of 63 pairs are allowed" in written
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [str(i) for i in range(2, 9)]


def test_mask_is_drawn_with_labels():
    figure = rg.Causal().plot(ENGLISH, CHINESE, title="who looks")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ENGLISH
    assert [label.get_text().replace("\n", "") for label in figure.axes[0].get_xticklabels()] == CHINESE
    assert "who looks" in texts(figure)
    same = rg.Causal().plot(ENGLISH)
    assert [label.get_text() for label in same.axes[0].get_xticklabels()] == ENGLISH


def test_mask_is_drawn_for_a_batch_and_a_head():
    allowed = torch.rand(2, 3, 4, 4) > 0.5
    held = image_of(rg.Pairs(allowed).plot(4, batch=1, head=2))
    assert torch.equal(torch.from_numpy(~held.mask), allowed[1, 2])
    with pytest.raises(rg.BadInput, match="head is 3; there are 3"):
        rg.Pairs(allowed).plot(4, head=3)


@pytest.mark.parametrize(("queries", "keys", "tile"), [(1000, 1000, 4), (700, 513, 3)])
def test_large_mask_is_drawn_by_tiles(queries, keys, tile):
    mask = rg.Causal() & rg.Window(100)
    figure = mask.plot(queries, keys)
    held = image_of(figure)
    dense = mask.dense(queries, keys)
    for row, column in ((0, 0), (100, 20), (100, 100), (held.shape[0] - 1, held.shape[1] - 1)):
        pairs = dense[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]
        assert held.data[row, column] == (2 if pairs.all() else 1 if pairs.any() else 0)
    first = keys - queries
    assert figure.axes[0].get_yticklabels()[0].get_text() == f"{first}–{first + tile - 1}"
    assert {"all allowed", "some, or not known", "none allowed"} <= set(texts(figure))


def test_mask_of_a_hundred_thousand_tokens_is_drawn():
    figure = ((rg.Causal() & rg.Window(512)) | rg.Global(4)).plot(100_000)
    assert max(image_of(figure).shape) <= 256


@pytest.mark.parametrize(
    ("mask", "queries", "message"),
    [
        (rg.Pairs(torch.ones(4, 4, dtype=torch.bool)), 5, "does not fit 5 queries and 5 keys"),
        (rg.Causal(), "words", "queries is the text 'words'"),
        (rg.Causal(), 0, "queries is 0; a figure needs at least one"),
        (rg.Causal(), [], "at least one"),
    ],
)
def test_mask_that_does_not_fit_is_refused(mask, queries, message):
    with pytest.raises(rg.BadInput, match=message):
        mask.plot(queries)
